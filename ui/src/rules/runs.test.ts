import { expect, it } from "vitest";
import { saidIn, valuesOf } from "./runs";

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
