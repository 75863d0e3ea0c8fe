import { expect, it } from "vitest";
import { layersSaid } from "./layers";

it("says one layer, a row of layers, a few and many", () => {
  expect([[3], [8, 9, 10], [5, 2], [1, 3, 5, 7, 9], []].map(layersSaid)).toEqual([
    "layer 3",
    "layers 8 to 10",
    "layers 2, 5",
    "5 layers from 1 to 9",
    "no layer",
  ]);
});
