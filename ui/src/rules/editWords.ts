// What an edit does, in words and as a formula.
import { editKind } from "./editKinds";
import type { Edit, FeatureName, Names, Positions, When } from "./edits";
import { layersSaid } from "./layers";

/** What an edit does, where, and under which condition: `Hold sea at 40, at the tokens of the answer`. */
export function sentence(edit: Edit, names: Names): string {
  return [does(edit, names), atLayers(edit), atPositions(edit.positions), under(edit.when, names)]
    .filter((part) => part !== "")
    .join(", ");
}

function does({ op, feature, vector = "", to = "", value = 1, unit }: Edit, names: Names): string {
  const name = feature === undefined ? names.vector(vector) : names.feature(feature);
  const said = { name, to: names.vector(to), value, number: written(value), unit };
  return editKind(op, feature === undefined ? "vector" : "feature")?.says(said) ?? "";
}

function atLayers({ layers }: Edit): string {
  if (layers === undefined) return "";
  if ("from" in layers) return layers.from === layers.to ? `at layer ${layers.from}` : `at layers ${layers.from} to ${layers.to}`;
  return `at ${layersSaid(layers)}`;
}

/** The names of positions in words. */
export const WHERE = {
  all: "everywhere",
  prompt: "in the prompt without its last token",
  last_prompt: "at the last token of the prompt",
  generated: "at the tokens of the answer",
  output: "at every token that predicts one of the answer",
} as const;

function atPositions(positions: Positions | undefined): string {
  if (positions === undefined || positions === "all") return "";
  if (typeof positions === "string") return WHERE[positions] ?? `at ${String(positions)}`;
  const keys = Object.keys(positions);
  const { after_text, roles } = positions;
  if (keys.length === 1 && typeof after_text === "string") return `after the text “${after_text}”`;
  if (keys.length === 1 && Array.isArray(roles)) return `in the messages of the ${roles.join(", ")}`;
  return "at positions of its own";
}

function under(when: When | undefined, names: Names): string {
  if (when === undefined) return "";
  const { feature, vector, above, below, over = "token", hold = "token" } = when;
  const name = feature === undefined ? (vector === undefined ? null : `the part along ${names.vector(vector)}`) : names.feature(feature);
  if (name === null) return "under a condition of several parts";
  const bound = above === undefined ? `below ${written(below ?? 0)}` : `above ${written(above)}`;
  if (over === "prompt_max") return `if ${name} is ${bound} at its largest in the prompt`;
  if (over === "prompt_mean") return `if ${name} is ${bound} in the mean of the prompt`;
  if (over === "last_prompt") return `if ${name} is ${bound} at the last token of the prompt`;
  if (hold === "rest") return `from the first token on where ${name} is ${bound}`;
  return hold === "token" ? `where ${name} is ${bound}` : `where ${name} is ${bound}, for ${hold} tokens each`;
}

/** A number as a person writes it. */
function written(value: number): string {
  return String(Number(value.toFixed(6))).replace("-", "−");
}

/** The formula of an edit, and what its letters mean. */
export function formula({ op, feature, unit }: Edit): { formula: string; letters: string } {
  const x = "x is the value at one token";
  const plain = editKind(op, feature === undefined ? "vector" : "feature")?.formula ?? "";
  if (feature !== undefined) {
    const largest = unit === "max" ? ", value is multiplied by the largest activation that is known" : "";
    return { formula: plain, letters: `${x}, a the activation of the feature, d its decoder direction${largest}` };
  }
  const made = unit === "unit" ? "x + value · v̂" : unit === "residual" ? "x + value · |x| · v̂" : plain;
  const other = op === "swap" ? ", t̂ the other vector with length 1" : "";
  const letters = `${x}, v the vector at the layer, v̂ = v / |v|, p = x · v̂ the part of x along it${other}`;
  return { formula: made, letters };
}

/** The name of a feature without its label: `3:90`, or `#90` where the layer is not named. */
export function plainName({ index, layer }: FeatureName): string {
  return layer === undefined ? `#${index}` : `${layer}:${index}`;
}
