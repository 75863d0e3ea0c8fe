import { expect, it } from "vitest";
import { chosen, unitTable } from "./units";

const UNITS = [
  { path: "layer_2/width_16k/a", layer: 2, width: "16k" },
  { path: "layer_2/width_16k/b", layer: 2, width: "16k" },
  { path: "layer_10/width_1m/a", layer: 10, width: "1m" },
  { path: "embedding/width_4k", layer: null, width: "4k" },
];

it("layers and widths are sorted by size, and counted", () => {
  const table = unitTable(UNITS);
  expect(table.layers).toEqual([2, 10, null]);
  expect(table.widths).toEqual(["4k", "16k", "1m"]);
  expect(table.count(2, "16k")).toBe(2);
  expect(table.count(10, "16k")).toBe(0);
});

it("a choice takes the SAEs of its layer, width and words", () => {
  expect(chosen(UNITS, { layer: "2", width: "16k", words: "" })).toHaveLength(2);
  expect(chosen(UNITS, { layer: "-", width: "", words: "" })).toEqual([UNITS[3]]);
  expect(chosen(UNITS, { layer: "", width: "", words: "WIDTH_16k b" })).toEqual([UNITS[1]]);
});
