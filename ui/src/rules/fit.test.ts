import { expect, it } from "vitest";
import { mayBeSplit, places, verdict } from "./fit";

const HOST = { available_mb: 1000 };
const CARD = { smi_index: 0, torch_index: 0, name: "H", free_mb: 500 };

it("the machine is the place where there is no card", () => {
  expect(places({ cards: [], host: HOST }, { cpu: 300 })).toEqual([{ name: "this machine", free: 1000, returned: 300 }]);
  expect(places({ cards: [CARD], host: HOST }, { "cuda:0": 40 })).toEqual([{ name: "0: H", free: 500, returned: 40 }]);
});

it("says whether a need fits, also once the loaded model is gone, and nothing without a need", () => {
  const place = { name: "0: H", free: 500, returned: 40 };
  expect(verdict(500, place)).toBe("fits");
  expect(verdict(540, place)).toBe("fits once the loaded model is unloaded");
  expect(verdict(541, place)).toBe("does not fit");
  expect(verdict(null, place)).toBe("not known");
  expect(verdict(0, place)).toBe("not known");
});

it("a model that fits no card may be split over all", () => {
  const two = places({ cards: [CARD, { ...CARD, smi_index: 1 }], host: HOST }, undefined);
  expect(mayBeSplit(900, two)).toBe(true);
  expect(mayBeSplit(1100, two)).toBe(false);
  expect(mayBeSplit(400, two)).toBe(false);
  expect(mayBeSplit(900, two.slice(1))).toBe(false);
});
