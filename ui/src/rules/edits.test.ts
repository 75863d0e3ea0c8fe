import { expect, it } from "vitest";
import { read } from "./link";
import { isEdits, sentEdits, vectorEdit, vectorPath } from "./edits";
import { interventionsOf } from "./interventions";
import { opened, STEER } from "./steer";

it.each([
  ["no list", {}],
  ["an op that is none", [{ op: "melt", vector: "vec_1" }]],
  ["an edit of nothing", [{ op: "ablate" }]],
  ["an edit of both", [{ op: "ablate", vector: "vec_1", feature: { index: 1 } }]],
  ["a feature without an index", [{ op: "ablate", feature: { index: -1 } }]],
  ["a value that is no number", [{ op: "add", vector: "vec_1", value: "1" }]],
  ["a site that is not replaced", [{ op: "ablate", layer: 1, source: { text: "A ship" } }]],
  ["a replacement of nothing", [{ op: "replace", layer: 1 }]],
  ["a source that is no object", [{ op: "replace", layer: 1, source: "A ship" }]],
  ["a source that is null", [{ op: "replace", layer: 1, source: null }]],
  ["more than 64", Array(65).fill({ op: "ablate", vector: "vec_1" })],
])("a link cannot bring %s", (_, value) => {
  expect(isEdits(value)).toBe(false);
});

it("a replacement is in a link and in requests as it is", () => {
  const edits = [
    { op: "replace", site: "hook_z", layer: 3, heads: [1], positions: { prompt_positions: [5] }, source: { text: "A ship", positions: "last_prompt" } },
    { op: "replace", vector: "vec_1" },
    { op: "replace", feature: { index: 1 }, source: { messages: [{ role: "user", content: "Hello" }] }, value: 0.5 },
  ];
  const state = read(new URLSearchParams({ e: JSON.stringify(edits) }), STEER);
  expect(interventionsOf({ ...state, f: [] })).toEqual({ edits });
});

it("an edit that is off is in no request", () => {
  const edits = [{ op: "ablate", vector: "vec_1", off: 1 } as const, { op: "ablate", vector: "vec_2" } as const];
  expect(sentEdits(edits)).toEqual([{ op: "ablate", vector: "vec_2" }]);
});

it("the values of features are edits of the same request", () => {
  const state = read(new URLSearchParams({ e: '[{"op":"ablate","vector":"vec_1"}]', norm: "1" }), STEER);
  expect(interventionsOf({ ...state, f: [[90, 52.5, 1, "sae_a@3"], [4, 1, 0, "sae_a@3"]] })).toEqual({
    edits: [
      { op: "add", feature: { index: 90, sae_id: "sae_a", layer: 3 }, value: 52.5 },
      { op: "ablate", vector: "vec_1" },
    ],
    preserve_norm: true,
  });
  expect(interventionsOf({ ...state, for: "live", f: [] })).toBeNull();
});

const VECTOR = { id: "vec_1", operation: "add" as const, suggested_value: null, training: null, measured: null };

it.each([
  [{}, { value: 1 }],
  [{ training: { best_layer: 7 } }, { value: 1, layers: [7] }],
  [{ training: { best_layer: 7 }, measured: { best: null } }, { value: 1, layers: [7] }],
  [{ training: { best_layer: 7 }, measured: { best: { layer: 14, strength: 0.5 } } }, { value: 0.5, layers: [14] }],
  [{ suggested_value: 4, measured: { best: { layer: 14, strength: 0.5 } } }, { value: 0.5, layers: [14] }],
])("the first edit of a vector acts where it was measured to act best: %j", (facts, edit) => {
  expect(vectorEdit({ ...VECTOR, ...facts })).toEqual({ op: "add", vector: "vec_1", ...edit });
});

it("a link that brings only an edit keeps what the tab had, and has each edit once", () => {
  const link = new URLSearchParams(vectorPath({ ...VECTOR, suggested_value: 4 }).split("?")[1]);
  const kept = new URLSearchParams({ prompt: "One day", as: "prompt", e: '[{"op":"ablate","vector":"vec_2"}]' });
  const both = read(opened(link, kept.toString()) ?? new URLSearchParams(), STEER);
  const edits = [
    { op: "ablate", vector: "vec_2" },
    { op: "add", vector: "vec_1", value: 4 },
  ];
  expect([both.prompt, both.e]).toEqual(["One day", edits]);
  const again = new URLSearchParams({ prompt: "One day", e: JSON.stringify(edits) });
  expect(read(opened(link, again.toString()) ?? new URLSearchParams(), STEER).e).toEqual(edits);
});
