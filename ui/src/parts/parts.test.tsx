import { act, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";
import { ApiError } from "../rules/errors";
import { violations } from "../test/axe";
import { Bars } from "./Bars";
import { Confirm } from "./Confirm";
import { ConnectionDot } from "./ConnectionDot";
import { CopyCode } from "./CopyCode";
import { Dial } from "./Dial";
import { LeaseBanner } from "./LeaseBanner";
import { MemoryBar } from "./MemoryBar";
import { Notices, notify, notifyError } from "./Notices";
import { ProgressRow } from "./ProgressRow";

it("a dial goes to the ends of its declared range and off, each by a button", async () => {
  const sent = vi.fn();
  render(<Dial name="sea words" value={0.8} range={[0.2, 1.5]} onCommit={sent} />);
  expect(screen.getByRole("slider", { name: "Intensity of sea words" }).getAttribute("max")).toBe("1.5");
  await userEvent.click(screen.getByRole("button", { name: "Most 1.50" }));
  await userEvent.click(screen.getByRole("button", { name: "Off 0.00" }));
  expect(sent.mock.calls).toEqual([[1.5], [0]]);
});

it("bars print their scale and their numbers", () => {
  render(<Bars label="Top features" bars={[{ id: "1", label: "sea", value: 4 }, { id: "2", label: "ship", value: 1 }]} />);
  expect(screen.getByRole("list", { name: "Top features" }).textContent).toContain("4.00");
  expect(screen.getByText(/A full bar is 4.00/)).toBeTruthy();
});

it("memory says how much is whose, and a dash for what was not measured", () => {
  render(<MemoryBar name="H200" total={1000} used={400} ours={null} />);
  expect(screen.getByRole("meter", { name: "Used memory of H200" }).getAttribute("aria-valuetext")).toBe(
    "400 MiB of 1000 MiB",
  );
  expect(screen.getByText("this service").textContent).toContain("–");
});

it("progress keeps one unit, and has no number while nothing is known", () => {
  const { rerender } = render(<ProgressRow name="llama" progress={25} done={2 ** 30} total={2 ** 32} rate={2 ** 20} />);
  expect(screen.getByText(/1.0 GiB of 4.0 GiB, 1.0 MiB\/s, 51 min 12 s left/)).toBeTruthy();
  rerender(<ProgressRow name="llama" progress={null} />);
  expect(screen.getByRole("progressbar", { name: "Progress of llama" }).hasAttribute("value")).toBe(false);
});

it("a confirmation names the action and does nothing when it is left", async () => {
  const [confirmed, closed] = [vi.fn(), vi.fn()];
  render(
    <Confirm title="Unload the model?" action="Unload" isOpen onConfirm={confirmed} onClose={closed}>
      Two requests run.
    </Confirm>,
  );
  await userEvent.click(screen.getByRole("button", { name: "Cancel" }));
  expect([confirmed.mock.calls.length, closed.mock.calls.length]).toEqual([0, 1]);
  await userEvent.click(screen.getByRole("button", { name: "Unload" }));
  expect(confirmed).toHaveBeenCalledTimes(1);
});

it("notices are read out, and a refusal stays until it is closed", async () => {
  render(<Notices />);
  const region = screen.getByRole("region", { name: "Notices" });
  expect(region.querySelector("[aria-live]")).not.toBeNull();
  act(() => {
    notify("Saved.");
    notifyError(new ApiError("locked", "MODEL_LOCKED"));
  });
  expect(region.textContent).toContain("Saved.");
  expect(screen.getByRole("alert").textContent).toContain("MODEL_LOCKED");
  const close = screen.getAllByRole("button", { name: "Close the notice" });
  await userEvent.click(close[1] as Element);
  expect(screen.queryByRole("alert")).toBeNull();
});

it("a request is shown as curl and as Python", async () => {
  const { container } = render(<CopyCode sent={{ method: "GET", url: "http://h/api/models", headers: {} }} />);
  await userEvent.click(screen.getByText("As curl or Python"));
  expect(screen.getByRole("group", { name: "curl command" }).textContent).toBe("curl -s 'http://h/api/models'");
  await userEvent.click(screen.getByRole("radio", { name: "Python" }));
  expect(screen.getByRole("group", { name: "Python program" }).textContent).toContain("httpx.get(");
  expect(await violations(container)).toEqual([]);
});

it("a lease says who holds it, why, and for how long", () => {
  const lease = { model_name: "demo", holder: "lab", reason: "a sweep", expires_at: new Date(Date.now() + 90_500).toISOString() };
  render(<LeaseBanner lease={lease} />);
  const banner = screen.getByRole("complementary", { name: "Lease" });
  expect(banner.textContent).toMatch(/lab holds a lease on demo: a sweep.*ends in 1 min 3\d s/);
});

it("the connection is told in words", () => {
  render(<ConnectionDot state="lost" />);
  expect(screen.getByRole("status").textContent).toContain("not live");
});
