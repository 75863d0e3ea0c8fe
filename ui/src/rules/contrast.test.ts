import { expect, it } from "vitest";
import { lacking, textsIn } from "./contrast";

it("a text is a line, or all lines up to an empty one", () => {
  const written = " One\ntwo \r\n\n  \nthree\n";
  expect(textsIn(written, "lines")).toEqual(["One", "two", "three"]);
  expect(textsIn(written, "blocks")).toEqual(["One\ntwo", "three"]);
});

it("says why two groups cannot be compared", () => {
  expect(lacking(["a"], ["b", "c"])).toBe("Write at least 2 texts into each box.");
  expect(lacking(["a", "b"], Array(2_001).fill("c"))).toBe("A box takes at most 2,000 texts.");
  expect(lacking(["a", "b"], ["c", "d"])).toBeNull();
});
