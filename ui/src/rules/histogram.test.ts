import { expect, it } from "vitest";
import { distribution } from "./histogram";

it("counts every value once, in bins of a round width that begin at 0", () => {
  const values = [0, 0, 1.5, 2, 47.9, 67.3];
  const { zeros, bins } = distribution(values);
  expect(zeros).toBe(2);
  expect(bins.reduce((sum, bin) => sum + bin.count, 0)).toBe(4);
  expect(bins[0]).toEqual({ from: 0, to: 5, count: 2 });
  expect(bins.at(-1)).toEqual({ from: 65, to: 70, count: 1 });
});

it("has bins below 0 where values are below 0", () => {
  const { bins } = distribution([-3, 4], 4);
  expect(bins[0]).toMatchObject({ from: -4, count: 1 });
  expect(bins.at(-1)).toMatchObject({ count: 1 });
});

it("has no bins where every value is 0", () => {
  expect(distribution([0, 0])).toEqual({ zeros: 2, bins: [] });
  expect(distribution([])).toEqual({ zeros: 0, bins: [] });
});
