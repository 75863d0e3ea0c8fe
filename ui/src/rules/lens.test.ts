import { expect, it } from "vitest";
import { everyNth, mapped } from "./lens";

it("of the chosen layers those that a lens maps are read, and the last one", () => {
  expect(mapped([0, 2, 4], [0, 1], 5)).toEqual([0, 4]);
  expect(mapped(null, [0, 1], 5)).toBeNull();
});

it("the last layer is always read", () => {
  expect(everyNth(5, 2)).toEqual([0, 2, 4]);
  expect(everyNth(6, 4)).toEqual([1, 5]);
  expect([everyNth(5, 1), everyNth(null, 2)]).toEqual([null, null]);
});
