import { expect, it } from "vitest";
import { proposedName } from "./proposal";

it("proposes the strongest features under a name that is free", () => {
  const labels = new Map([
    [90, "sea"],
    [876, "whale"],
  ]);
  const values = { "3": 1, "90": 47, "876": -4, "5": 0 };
  expect(proposedName(values, labels, new Set())).toBe("sea, whale and 1 more");
  expect(proposedName({ "90": 1 }, labels, new Set(["sea", "sea (2)"]))).toBe("sea (3)");
  expect(proposedName({ "3": 2 }, labels, new Set())).toBe("feature 3");
  expect(proposedName({ "3": 0 }, labels, new Set())).toBe("");
});
