import { act, renderHook } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { useGathered } from "./useGathered";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

function shown() {
  const draws = vi.fn();
  const { result } = renderHook(() => {
    const gathered = useGathered<number>(3, 200);
    draws(gathered.drawn);
    return gathered;
  });
  const add = (...values: number[]) => act(() => values.forEach(result.current.add));
  const pass = (milliseconds: number) => act(() => vi.advanceTimersByTime(milliseconds));
  draws.mockClear();
  return { result, draws, add, pass };
}

it("draws the first value at once, those that follow fast together, and keeps the last ones", () => {
  const { result, draws, add, pass } = shown();
  add(1);
  pass(0);
  expect(result.current.drawn).toEqual([1]);
  add(2, 3, 4);
  pass(199);
  expect(draws).toHaveBeenCalledTimes(1);
  pass(1);
  expect(draws).toHaveBeenCalledTimes(2);
  expect(result.current.drawn).toEqual([2, 3, 4]);
});

it("draws nothing while the page is hidden, and all when it is seen again", () => {
  const { result, draws, add, pass } = shown();
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  add(1, 2);
  pass(1_000);
  expect(draws).not.toHaveBeenCalled();
  hidden.mockReturnValue(false);
  act(() => void document.dispatchEvent(new Event("visibilitychange")));
  expect(result.current.drawn).toEqual([1, 2]);
});

it("forgets what was gathered, also what was not drawn yet", () => {
  const { result, add, pass } = shown();
  add(1);
  pass(0);
  add(2);
  act(() => result.current.clear());
  pass(1_000);
  expect(result.current.drawn).toEqual([]);
});
