import { expect, it } from "vitest";
import { repetition } from "./repetition";

it("is the part of the runs of three words that stood in the text before", () => {
  expect(repetition("The sea, the sea, the sea, the sea.")).toBeCloseTo(4 / 6);
  expect(repetition("One day a sailor sailed past the lighthouse.")).toBe(0);
  for (const short of ["", "the sea was"]) expect(repetition(short)).toBeNull();
});
