import { expect, it } from "vitest";
import { featureIn, featurePath, indexIn, indices } from "./places";

it("writes the path of a feature and reads it back", () => {
  for (const place of [
    { sae: "sae_02558d998a1f", layer: 3, index: 90 },
    { sae: "sae_02558d998a1f", layer: null, index: 0 },
  ]) {
    expect(featureIn(featurePath(place).replace("/features/", ""))).toEqual(place);
  }
  for (const rest of ["", "sae_1", "sae_1/3", "sae_1/3/x", "sae_1/3/-1", "sae_1/3/90/1"]) {
    expect(featureIn(rest)).toBeNull();
  }
});

it("takes an index in the forms in which people write it", () => {
  expect(["90", " #90 ", "3:90"].map(indexIn)).toEqual([90, 90, 90]);
  expect(["", "sea", "9.5", "-9", "sea 9", "9999999999"].map(indexIn)).toEqual(Array(6).fill(null));
});

it("reads a list of indices, each once, and nothing from a damaged list or one that is too long", () => {
  const pins = indices(3);
  expect(pins.read("90,332,90,4")).toEqual([90, 332, 4]);
  expect(pins.read("90,332,4,5")).toBeUndefined();
  expect(pins.read("90,,332")).toBeUndefined();
  expect(pins.read(pins.write([7, 8]))).toEqual([7, 8]);
});
