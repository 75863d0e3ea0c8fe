import { describe, expect, it } from "vitest";
import { atIntensity, differences, fitting, liveAt, unclaimed } from "./values";

describe("atIntensity", () => {
  it("is a plain product within the bound", () => {
    expect(atIntensity(3, 1.2)).toBe(3.6);
    expect(atIntensity(-150, 2)).toBe(-200);
    expect(Object.is(atIntensity(-5, 0), 0)).toBe(true);
  });
});

describe("differences", () => {
  it("has the features whose live value is another one, on either side", () => {
    const values = { "3": 10, "7": 4, "9": 0, "20": 2 };
    expect(differences(values, 0.5, { "3": 5, "7": 2.5, "11": 1 })).toEqual([
      { index: 7, saved: 2, live: 2.5 },
      { index: 11, saved: null, live: 1 },
      { index: 20, saved: 1, live: null },
    ]);
  });
  it("has nothing for values that differ by noise", () => {
    expect(differences({ "1": 0.1 }, 3, { "1": 0.1 * 3 })).toEqual([]);
  });
});

describe("the SAE of a document", () => {
  const attached = [
    { sae_id: "a", layer: 2 },
    { sae_id: "b", layer: 3 },
  ];
  it("is the attached one with its id and its layer, or one at its layer", () => {
    expect(fitting(attached, "b", 3)?.sae_id).toBe("b");
    expect(fitting(attached, "b", null)?.sae_id).toBe("b");
    expect(fitting(attached, "of another server", 3)?.sae_id).toBe("b");
    expect(fitting(attached, null, null)?.sae_id).toBe("a");
    expect(fitting(attached, "a", 9)).toBeNull();
  });
  it("has its live values under its place, unless it is the first", () => {
    const steering = { values: { "1": 5 }, others: { "b@3": { "2": 6 } } };
    expect(liveAt(steering, attached, { sae_id: "a", layer: 2 })).toEqual({ "1": 5 });
    expect(liveAt(steering, attached, { sae_id: "b", layer: 3 })).toEqual({ "2": 6 });
    expect(liveAt({ values: {} }, attached, { sae_id: "b", layer: 3 })).toEqual({});
  });
});

it("counts the values that no circuit claims", () => {
  const attached = [
    { sae_id: "a", layer: 2 },
    { sae_id: "b", layer: 3 },
  ];
  const live = { values: { "1": 5, "2": 0 }, others: { "b@3": { "1": 5, "7": 1 } } };
  expect(unclaimed(live, attached, [])).toBe(3);
  expect(unclaimed(live, attached, [{ layer: 3, steering_keys: [1, 9] }])).toBe(2);
});
