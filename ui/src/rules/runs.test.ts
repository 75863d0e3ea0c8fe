import { expect, it } from "vitest";
import { editsOf, saidIn, valuesOf } from "./runs";

it.each([
  [{ messages: [{ role: "user", content: "Hi" }] }, [{ role: "user", text: "Hi" }]],
  [{ prompt: "One day" }, [{ role: null, text: "One day" }]],
  [{ prompt: ["a", "b"] }, [{ role: null, text: "a" }, { role: null, text: "b" }]],
  [
    { instructions: "Be brief.", input: "Hi" },
    [{ role: "instructions", text: "Be brief." }, { role: null, text: "Hi" }],
  ],
  [{ messages: [{ role: "user", content: [{ type: "text", text: "Hi" }] }] }, [{ role: "user", text: '[{"type":"text","text":"Hi"}]' }]],
  [{ prompt: [[1, 2]] }, [{ role: null, text: "[1,2]" }]],
  [{}, []],
])("finds what a request said", (body, said) => {
  expect(saidIn(body)).toEqual(said);
});

it("orders the values of steering by their size", () => {
  expect(valuesOf({ "sae@3": { "1": 5, "2": -60 } })).toEqual([
    { key: "sae@3", features: [{ index: 2, value: -60 }, { index: 1, value: 5 }] },
  ]);
});

it("has the edits of a request, those of sites too", () => {
  const replace = { op: "replace", layer: 3, source: { text: "A ship" } };
  const edits = [replace, { op: "ablate", vector: "vec_1" }, { op: "ablate", vector: { layer: 1, data: "AAAA" } }];
  expect(editsOf({ interventions: { edits } })).toEqual(edits.slice(0, 2));
});
