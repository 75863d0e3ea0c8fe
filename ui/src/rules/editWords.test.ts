import { expect, it } from "vitest";
import type { Edit } from "./edits";
import { formula, sentence } from "./editWords";

const names = {
  feature: ({ index }: { index: number }) => (index === 90 ? "sea" : `#${index}`),
  vector: (id: string) => id.replace("vec_", ""),
};
const SEA = { index: 90 };

it.each<[Edit, string]>([
  [{ op: "add", feature: SEA, value: 52.5 }, "Add sea at +52.5"],
  [{ op: "add", feature: SEA, value: -3 }, "Add sea at −3"],
  [{ op: "set", feature: SEA, value: 0.5, unit: "max" }, "Hold sea at 0.5 times its largest activation"],
  [{ op: "at_most", feature: SEA, value: 3 }, "Keep sea at 3 or below"],
  [{ op: "ablate", feature: { index: 4 } }, "Take #4 out"],
  [{ op: "add", vector: "vec_calm", value: 2 }, "Add 2 × calm"],
  [{ op: "add", vector: "vec_calm", value: 0.1, unit: "residual" }, "Add calm with 0.1 of the length of the value"],
  [{ op: "ablate", vector: "vec_calm" }, "Take calm out"],
  [{ op: "ablate", vector: "vec_calm", value: 0.5 }, "Take 0.5 of calm out"],
  [{ op: "swap", vector: "vec_calm", to: "vec_storm" }, "Turn calm into storm"],
  [
    { op: "scale", vector: "vec_calm", value: 2, layers: { from: 8, to: 12 } },
    "Multiply the part along calm by 2, at layers 8 to 12",
  ],
  [{ op: "ablate", feature: SEA, positions: "generated" }, "Take sea out, at the tokens of the answer"],
  [{ op: "ablate", feature: SEA, positions: { after_text: "The" } }, "Take sea out, after the text “The”"],
  [{ op: "ablate", feature: SEA, positions: { tokens: [1] } }, "Take sea out, at positions of its own"],
  [{ op: "ablate", feature: SEA, when: { feature: SEA, above: 2.5 } }, "Take sea out, where sea is above 2.5"],
  [
    { op: "ablate", feature: SEA, when: { vector: "vec_calm", below: 0, hold: "rest" } },
    "Take sea out, from the first token on where the part along calm is below 0",
  ],
  [
    { op: "ablate", feature: SEA, when: { feature: SEA, above: 1, over: "prompt_max" } },
    "Take sea out, if sea is above 1 at its largest in the prompt",
  ],
  [{ op: "ablate", feature: SEA, when: { any: [] } }, "Take sea out, under a condition of several parts"],
  [
    { op: "replace", layer: 12, positions: { prompt_positions: [5] }, source: { text: "The Eiffel Tower is in", positions: "last_prompt" } },
    "Replace resid_post of layer 12 by that of “The Eiffel Tower is in” at its last token, at position 5",
  ],
  [
    {
      ...{ op: "replace", site: "hook_z", layers: [3], heads: [0, 4], positions: { prompt_positions: [2, 5, 9] } },
      source: { text: "The Eiffel Tower is in", positions: { prompt_positions: [2, 5, 9] } },
    },
    "Replace hook_z of layer 3, heads 0 and 4 by that of “The Eiffel Tower is in”, at positions 2, 5 and 9",
  ],
  [
    {
      ...{ op: "replace", site: "mlp_out", layers: { from: 3, to: 5 }, value: 0.5, positions: "prompt" },
      source: { messages: [{ role: "user", content: "a".repeat(81) }], positions: { prompt_positions: [7] } },
    },
    `Move mlp_out of layers 3 to 5 0.5 of the way to that of the conversation that ends with “${"a".repeat(80)}…” at its position 7, in the prompt without its last token`,
  ],
  [{ op: "replace", layer: 1, source: { mean_of: "capture_ab" } }, "Replace resid_post of layer 1 by the mean of capture_ab"],
  [{ op: "replace", layer: 1, source: { capture: "capture_ab", row: 3 } }, "Replace resid_post of layer 1 by row 3 of capture_ab"],
  [{ op: "replace", layer: 1, source: {}, positions: { prompt_positions: [0, 1, 2, 3, 4, 5, 6] } }, "Replace resid_post of layer 1 by that of another text, at 7 positions"],
  [{ op: "replace", vector: "vec_calm", layers: [8] }, "Replace the value by the numbers of calm, at layer 8"],
  [{ op: "replace", vector: "vec_calm", value: 0.5 }, "Move the value 0.5 of the way to the numbers of calm"],
  [
    { op: "replace", feature: SEA, source: { text: "A ship", positions: { tokens: [3] } } },
    "Replace the activation of sea by that of “A ship” at positions of its own",
  ],
])("says %o in words", (edit, words) => {
  expect(sentence(edit, names)).toBe(words);
});

it("has a formula for each edit, and the meaning of its letters", () => {
  expect(formula({ op: "set", feature: SEA, value: 1 }).formula).toBe("x + (value − a) · d");
  expect(formula({ op: "add", vector: "vec_calm", value: 1, unit: "unit" }).formula).toBe("x + value · v̂");
  expect(formula({ op: "swap", vector: "vec_calm", to: "vec_storm" }).letters).toContain("t̂ the other vector");
  expect(formula({ op: "replace", layer: 3, source: { text: "A ship" } })).toEqual({
    formula: "x + value · (s − x)",
    letters: "x is the value at one token, s the value in the other text",
  });
  expect(formula({ op: "replace", feature: SEA, source: { text: "A ship" } }).letters).toContain("a′ its activation in the other text");
  expect(formula({ op: "replace", vector: "vec_calm" }).letters).toContain("v the vector at the layer");
});
