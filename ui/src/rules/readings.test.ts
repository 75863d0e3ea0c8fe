import { expect, it } from "vitest";
import { labelsIn, merged, newer, ofEvent, ofRecord } from "./readings";

const at = (second: number) => `2026-11-22T12:00:0${second}.000000Z`;
const event = (second: number) =>
  ofEvent({
    timestamp: at(second),
    request_id: "cmpl-1",
    position: 9,
    activations: [{ feature_index: 17, activation: 42 }],
  });
const RECORD = {
  timestamp: at(2),
  request_id: "cmpl-1",
  sae_id: "sae_1",
  token_position: 9,
  choice: 0,
  activations: [{ feature_index: 90, activation: 0, label: "sea" }],
  top_k: [{ feature_index: 17, activation: 42, label: "a stop" }],
  fired: 25,
};

it("puts the record in the place of the event of the same answer", () => {
  const all = merged([ofRecord(RECORD)], [event(1), event(2), event(3)], 10);
  expect(all.map((one) => one.fired)).toEqual([null, 25, null]);
  expect(all[1]?.values.get(90)).toBe(0);
  // an event does not have the values of features that are not among the largest
  expect(all[2]?.values.get(90)).toBeUndefined();
});

it("keeps the newest readings, and counts those that came after a reading", () => {
  const all = merged([], [3, 1, 2].map(event), 2);
  expect(all.map((one) => one.at)).toEqual([Date.parse(at(2)), Date.parse(at(3))]);
  expect(newer(all, event(2))).toBe(1);
  expect(newer(all, undefined)).toBe(2);
});

it("takes the labels from the records", () => {
  expect([...labelsIn([RECORD])]).toEqual([
    [90, "sea"],
    [17, "a stop"],
  ]);
});
