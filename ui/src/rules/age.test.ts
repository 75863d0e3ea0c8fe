import { expect, it } from "vitest";
import { ago, clock, milliseconds, secondsSince, span } from "./age";

const NOW = new Date(2026, 10, 22, 14, 3, 22).getTime();

it("writes spans in their two largest units", () => {
  expect([0, 42, 60, 185, 7_800, 363_600, null].map((seconds) => span(seconds))).toEqual([
    "0 s",
    "42 s",
    "1 min",
    "3 min 5 s",
    "2 h 10 min",
    "4 d 5 h",
    "–",
  ]);
});

it("writes milliseconds with the digits that matter", () => {
  expect([0.84, 42.3, 1250, null].map((value) => milliseconds(value))).toEqual(["0.8 ms", "42 ms", "1.25 s", "–"]);
});

it("says how long ago something was, in one unit", () => {
  expect(ago(NOW - 500, NOW)).toBe("just now");
  expect(ago(NOW - 185_000, NOW)).toBe("3 min ago");
  expect(ago("no time", NOW)).toBe("–");
});

it("takes a moment of a clock that runs ahead for now", () => {
  expect(secondsSince(NOW + 60_000, NOW)).toBe(0);
});

it("writes the time of today with seconds, and another day with its date", () => {
  expect(clock(NOW, NOW)).toBe("14:03:22");
  expect(clock(NOW - 86_400_000, NOW)).toBe("Nov 21, 14:03");
});
