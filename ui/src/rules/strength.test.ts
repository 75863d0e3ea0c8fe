import { describe, expect, it } from "vitest";
import { LIMIT, next, position, POSITIONS, signed, strength } from "./strength";

describe("the scale of strengths", () => {
  it("has 0 in the middle and the limits at the ends", () => {
    expect(strength(0)).toBe(0);
    expect(strength(POSITIONS)).toBe(LIMIT);
    expect(strength(-POSITIONS)).toBe(-LIMIT);
  });

  it("is exactly inverted by position, for every step of every part", () => {
    let value = 0;
    while (value < LIMIT) {
      expect(strength(position(value))).toBe(value);
      expect(strength(position(-value))).toBe(-value + 0);
      value = next(value, 1);
    }
  });

  it("gives small strengths most of the travel", () => {
    expect(position(20)).toBeGreaterThan(POSITIONS * 0.35);
  });

  it("moves by one step, through 0 and never past the limits", () => {
    expect(next(0, 1)).toBe(0.1);
    expect(next(0.1, -1)).toBe(0);
    expect(next(0, -1)).toBe(-0.1);
    expect(next(10, 1)).toBe(10.5);
    expect(next(10, -1)).toBe(9.9);
    expect(next(LIMIT, 1)).toBe(LIMIT);
  });

  it("is written with its sign", () => {
    expect([signed(2.5), signed(-3), signed(0)]).toEqual(["+2.5", "−3", "0"]);
  });
});
