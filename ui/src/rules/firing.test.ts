import { expect, it } from "vitest";
import { atWords, fromKey, keyOf, newestFirst, ofCluster, ofEdge } from "./firing";

const facts = {
  request_id: "chatcmpl-1",
  choice: 0,
  phase: "decode",
  ambient_fired_count: null,
  summary: "",
  truncated: false,
  context_text: null,
  context_parts: null,
};
const edge = ofEdge({
  ...facts,
  id: 20,
  created_at: "2026-11-22T12:40:58.4Z",
  circuit_id: "circ_1",
  edge_key: "955@2->90@3",
  up: { layer: 2, feature_idx: 955, pos: 46, act: 14.5 },
  down: { layer: 3, feature_idx: 90, pos: 47, act: 10.7 },
  token_lag: 1,
  edge_rung: 2,
  edge_rung_language: "a phrase of the service",
});
const cluster = ofCluster({
  ...facts,
  id: 7,
  created_at: "2026-11-22T12:41:32.6Z",
  profile_id: "prof_1",
  pos_start: 78,
  pos_end: 79,
  fired_members: [[90, 37.8]],
  score: 5.6,
});

it("lists firings of both kinds, newest first", () => {
  expect(newestFirst([edge], [cluster]).map(keyOf)).toEqual(["cluster-7", "circuit-20"]);
});

it("keeps the phrase of the service and the place of each feature", () => {
  expect(edge.evidence).toEqual({ edge: "955@2->90@3", rung: 2, phrase: "a phrase of the service", lag: 1 });
  expect(edge.fired.map(({ layer, index, position }) => [layer, index, position])).toEqual([
    [2, 955, 46],
    [3, 90, 47],
  ]);
  expect([cluster.start, cluster.end, cluster.fired.length]).toEqual([78, 79, 1]);
});

it("marks words without the blanks around them", () => {
  expect(atWords({ before: "sail across", span: " the ocean ", after: "now" })).toEqual({
    before: "sail across ",
    span: "the ocean",
    after: " now",
  });
  expect(atWords({ before: "a", span: " ", after: "b" }).span).toBe(" ");
});

it("reads a link of a firing, and nothing else", () => {
  expect(fromKey("circuit-20")).toEqual({ kind: "circuit", id: 20 });
  expect(fromKey("20")).toBeNull();
  expect(fromKey("circuit-x")).toBeNull();
});
