import { expect, it } from "vitest";
import { naturally } from "./naturally";

it.each([
  [["width_1m", "width_16k", "width_262k"], ["width_16k", "width_262k", "width_1m"]],
  [["layer_10/width_16k", "layer_9/width_1m"], ["layer_9/width_1m", "layer_10/width_16k"]],
  [["scope-10", "scope-9", "scope"], ["scope", "scope-9", "scope-10"]],
  [["a 1.5b", "a 500m", "a 1km"], ["a 1km", "a 500m", "a 1.5b"]],
  [["b", "a", "B"], ["a", "b", "B"]],
])("names sort by the numbers in them: %j", (names, sorted) => {
  expect([...names].sort(naturally)).toEqual(sorted);
});
