import { act, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { ApiError } from "../rules/errors";
import { ErrorNotice } from "./ErrorNotice";

afterEach(() => vi.useRealTimers());

it("shows message, code and details, and counts down the time to come back", () => {
  vi.useFakeTimers();
  const error = new ApiError("the queue is full", "QUEUE_FULL", { pending: 64, cards: [{ free: 1 }] }, 503, 3);
  render(<ErrorNotice error={error} onRetry={vi.fn()} />);
  expect(screen.getByText("the queue is full", { exact: false })).toBeTruthy();
  expect(screen.getByText("QUEUE_FULL")).toBeTruthy();
  expect(screen.getByRole("rowheader", { name: "pending", hidden: true })).toBeTruthy();
  expect(screen.getByText('[{"free":1}]')).toBeTruthy();
  expect(screen.getByText("The service asks to wait 3 s.")).toBeTruthy();
  act(() => vi.advanceTimersByTime(1_000));
  expect(screen.getByText("The service asks to wait 2 s.")).toBeTruthy();
  act(() => vi.advanceTimersByTime(1_000));
  act(() => vi.advanceTimersByTime(1_000));
  expect(screen.queryByText(/asks to wait/)).toBeNull();
});

it("shows an error of the page itself too", () => {
  render(<ErrorNotice error={new TypeError("x is undefined")} />);
  expect(screen.getByRole("alert").textContent).toContain("x is undefined");
});

it("a connection that was lost is no refusal, and has no code to look up", () => {
  render(<ErrorNotice error={new ApiError("The service does not answer.", "CONNECTION_LOST")} onRetry={vi.fn()} />);
  const { textContent } = screen.getByRole("alert");
  expect(textContent).toContain("Connection lost. The service does not answer.");
  expect(textContent).not.toMatch(/Refused|CONNECTION_LOST|asks to wait/);
  expect(screen.getByRole("button", { name: "Try again" })).toBeTruthy();
});
