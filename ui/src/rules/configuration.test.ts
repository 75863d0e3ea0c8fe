import { expect, it } from "vitest";
import { bounded, named, TOP_K } from "./configuration";

it("takes indices with any separators, and none where one of them is no index", () => {
  expect(named("90, 332;17\n90")).toEqual([90, 332, 17]);
  expect(["", " , ", "90, sea", "-1"].map(named)).toEqual([null, null, null, null]);
});

it("takes whole numbers in their bounds", () => {
  expect(["1", "1000"].map((written) => bounded(written, TOP_K))).toEqual([1, 1000]);
  expect(["", "0", "1001", "2.5", "x"].map((written) => bounded(written, TOP_K))).toEqual(Array(5).fill(null));
});
