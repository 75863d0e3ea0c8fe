import { act, fireEvent, render, screen, within } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Token } from "../rules/tokens";
import { violations } from "../test/axe";
import { TokenView } from "./TokenView";

const TOKENS: Token[] = [
  { position: 0, text: "<s>", features: [{ index: 1, value: 300 }] },
  { position: 1, text: "The", features: [{ index: 7, value: 9.5 }], logprob: -0.5 },
  { position: 2, text: " sea", features: [{ index: 90, value: 20, label: "sea" }], logprob: -3 },
  { position: 3, text: ".", features: null },
];

function shown(pick: number | "surprise" | null = null) {
  const onPick = vi.fn();
  const onSteer = vi.fn();
  const drawn = render(
    <TokenView
      name="Tokens of the text"
      tokens={TOKENS}
      listed={3}
      pick={pick}
      onPick={onPick}
      actions={({ index }) => (
        <button type="button" onClick={() => onSteer(index)}>
          Steer
        </button>
      )}
    />,
  );
  const list = screen.getByRole("listbox", { name: "Tokens of the text" });
  return { ...drawn, onPick, onSteer, list, press: (key: string) => fireEvent.keyDown(list, { key }) };
}

it("moves between tokens with the arrow keys and opens each", async () => {
  const { press, list, onSteer, container } = shown();
  press("End");
  expect(screen.getByRole("group", { name: "Token at position 3" }).textContent).toContain("no features");
  press("ArrowLeft");
  const card = screen.getByRole("group", { name: "Token at position 2" });
  expect(card.textContent).toContain("log-probability −3.00 (5.0 %)");
  expect(within(card).getByRole("button", { name: /sea #90/ })).toBeTruthy();
  const active = within(list).getByRole("option", { selected: true });
  expect([active.textContent, list.getAttribute("aria-activedescendant")]).toEqual([" sea", active.id]);
  fireEvent.click(within(card).getByRole("button", { name: "Steer" }));
  expect(onSteer).toHaveBeenCalledWith(90);
  expect(await violations(container)).toEqual([]);
  press("Escape");
  expect(screen.queryByRole("group", { name: "Token at position 2" })).toBeNull();
});

it("opens a token under the pointer, and keeps it open once it was clicked", async () => {
  vi.useFakeTimers();
  try {
    const { list } = shown();
    fireEvent.pointerOver(screen.getByText("The"), { pointerType: "mouse" });
    await act(() => vi.advanceTimersByTimeAsync(200));
    expect(screen.getByRole("group", { name: "Token at position 1" })).toBeTruthy();
    fireEvent.click(screen.getByText("The"));
    fireEvent.pointerLeave(list.parentElement!);
    await act(() => vi.advanceTimersByTimeAsync(500));
    fireEvent.click(screen.getByRole("button", { name: "Close the token" }));
    expect(screen.queryByRole("group", { name: "Token at position 1" })).toBeNull();
  } finally {
    vi.useRealTimers();
  }
});

it("prints the scale of the feature, and lets another one be chosen", () => {
  const { onPick, container } = shown(90);
  expect(container.textContent).toContain("20.0");
  fireEvent.change(screen.getByRole("combobox"), { target: { value: "surprise" } });
  expect(onPick).toHaveBeenCalledWith("surprise");
});

it("says how little the first token counts: its values are not in the scale", () => {
  const { container } = shown(1);
  expect(container.querySelector(".scale-key")?.textContent).toBe("00.00");
});
