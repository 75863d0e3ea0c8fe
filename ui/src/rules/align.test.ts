import { expect, it } from "vitest";
import { placed, tokenAt } from "./align";

const DELTAS = ["Once", " upon", "", " a", " time"];

it("gives each token its text and its place", () => {
  const tokens = placed(DELTAS, 5, 10) ?? [];
  expect(tokens.map(({ position }) => position)).toEqual([10, 11, 12, 13, 14]);
  const whole = DELTAS.join("");
  for (const { text, start } of tokens) expect(whole.slice(start, start + text.length)).toBe(text);
});

it("gives no texts where a delta has several tokens", () => {
  expect(placed(DELTAS, 6)).toBeNull();
});

it("finds the token of a place, and no empty token", () => {
  const tokens = placed(DELTAS, 5) ?? [];
  expect([0, 3, 4, 8, 9, 11, 15, 16].map((place) => tokenAt(tokens, place))).toEqual([0, 0, 1, 1, 3, 4, 4, -1]);
  expect(tokenAt(tokens, -1)).toBe(-1);
});
