import { expect, it } from "vitest";
import { everyNth } from "./lens";

it("the last layer is always read", () => {
  expect(everyNth(5, 2)).toEqual([0, 2, 4]);
  expect(everyNth(6, 4)).toEqual([1, 5]);
  expect([everyNth(5, 1), everyNth(null, 2)]).toEqual([null, null]);
});
