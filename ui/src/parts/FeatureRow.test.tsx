import { act, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { violations } from "../test/axe";
import { position } from "../rules/strength";
import { FeatureRow } from "./FeatureRow";

const SEA = { index: 90, label: "sea", layer: 3, value: 5, isOn: true };

function shown(feature = SEA, onValue: (value: number) => Promise<unknown> | void = vi.fn()) {
  const [onSwitch, onRemove] = [vi.fn(), vi.fn()];
  const drawn = render(
    <ul>
      <FeatureRow feature={feature} onValue={onValue} onSwitch={onSwitch} onRemove={onRemove} />
    </ul>,
  );
  return { ...drawn, onSwitch, onRemove };
}
const slider = () => screen.getByRole<HTMLInputElement>("slider", { name: "Strength of sea" });
const box = () => screen.getByRole<HTMLInputElement>("spinbutton", { name: "Strength of sea, exact" });
const move = (to: number) => fireEvent.change(slider(), { target: { value: String(position(to)) } });

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

it("sends a moved slider once, when it rests", async () => {
  const sent = vi.fn();
  shown(SEA, sent);
  for (const value of [8, 20, 52]) move(value);
  expect(sent).not.toHaveBeenCalled();
  await act(() => vi.advanceTimersByTimeAsync(200));
  expect(sent.mock.calls).toEqual([[52]]);
});

it("sends at once when the slider is released", async () => {
  const sent = vi.fn();
  shown(SEA, sent);
  move(8);
  await act(async () => fireEvent.pointerUp(slider()));
  expect(sent.mock.calls).toEqual([[8]]);
});

it("shows what the service answered where it refused the value", async () => {
  shown(SEA, () => Promise.reject(new Error("refused")));
  move(20);
  expect(box().value).toBe("20");
  await act(() => vi.advanceTimersByTimeAsync(200));
  expect(box().value).toBe("5");
});

it("takes an exact number with Enter, and none outside the bounds", async () => {
  const sent = vi.fn();
  shown(SEA, sent);
  fireEvent.change(box(), { target: { value: "500" } });
  expect(box().getAttribute("aria-invalid")).toBe("true");
  fireEvent.keyDown(box(), { key: "Enter" });
  fireEvent.change(box(), { target: { value: "-12.345" } });
  fireEvent.keyDown(box(), { key: "Enter" });
  await act(() => vi.advanceTimersByTimeAsync(200));
  expect(sent.mock.calls).toEqual([[-12.345]]);
});

it("moves by one step with the arrow keys", async () => {
  const sent = vi.fn();
  shown(SEA, sent);
  fireEvent.keyDown(slider(), { key: "ArrowRight" });
  await act(() => vi.advanceTimersByTimeAsync(200));
  expect(sent.mock.calls).toEqual([[5.1]]);
});

it("has a name for each control, also without a label", async () => {
  vi.useRealTimers();
  const { container, onRemove } = shown();
  expect(await violations(container)).toEqual([]);
  expect(slider().getAttribute("aria-valuetext")).toBe("+5");
  fireEvent.click(screen.getByRole("button", { name: "Remove sea" }));
  expect(onRemove).toHaveBeenCalled();
  shown({ ...SEA, label: null as never });
  expect(screen.getByRole("switch", { name: "Use feature 90" })).toBeTruthy();
});
