import { expect, it } from "vitest";
import { lines, readLines } from "./valueLines";

it("reads what it writes", () => {
  const values = { "7": -4, "90": 20.5, "1000": 0 };
  expect(lines(values)).toBe("7: -4\n90: 20.5\n1000: 0");
  expect(readLines(lines(values)).values).toEqual(values);
});

it("reads lines that people and other tools write", () => {
  expect(readLines("1234:2.5\n\n 7 = −3 \n8,.5\n9 1e2").values).toEqual({ "1234": 2.5, "7": -3, "8": 0.5, "9": 100 });
});

it("names the line that cannot be read", () => {
  expect(readLines("7: 1\nsea: 3").fault).toContain("Line 2");
  expect(readLines("7: 1\n\n07: 3").fault).toContain("Line 3 has feature 7");
  expect(readLines("7: 1e").fault).toContain("Line 1");
});
