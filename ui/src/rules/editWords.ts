// What an edit does, in words and as a formula.
import { editKind } from "./editKinds";
import { sortOf, type Edit, type FeatureName, type Names, type Positions, type When } from "./edits";
import { layersSaid } from "./layers";

/** The characters of another text that a sentence has, and the positions that it names one by one. */
const TEXT_SHOWN = 80;
const POSITIONS_SHOWN = 6;

/** What an edit does, where, and under which condition: `Hold sea at 40, at the tokens of the answer`. */
export function sentence(edit: Edit, names: Names): string {
  return [does(edit, names), atLayers(edit), atPositions(edit.positions), under(edit.when, names)]
    .filter((part) => part !== "")
    .join(", ");
}

function does(edit: Edit, names: Names): string {
  const { op, feature, vector = "", to = "", value = 1, unit } = edit;
  const sort = sortOf(edit);
  const name = feature !== undefined ? names.feature(feature) : sort === "site" ? placeOf(edit) : names.vector(vector);
  const said = { name, to: names.vector(to), source: sourceOf(edit), value, number: written(value), unit };
  return editKind(op, sort)?.says(said) ?? "";
}

/** The site whose value a replacement writes: `hook_z of layer 3, heads 0 and 4`. */
function placeOf({ site = "resid_post", layer, layers = [], heads = [] }: Edit): string {
  const where = layersIn(layer === undefined ? layers : [layer]);
  const parts = heads.length === 0 ? "" : `, ${heads.length === 1 ? "head" : "heads"} ${listed(heads)}`;
  return `${site} of ${where}${parts}`;
}

/** What a replacement writes: `that of “The sea is” at its last token`. */
function sourceOf({ source, positions }: Edit): string {
  if (source === undefined) return "";
  if (source.mean_of !== undefined) return `the mean of ${source.mean_of}`;
  if (source.capture !== undefined) return `row ${source.row} of ${source.capture}`;
  const text = source.text ?? source.messages?.at(-1)?.content;
  if (text === undefined) return "that of another text";
  const all = Array.from(text.trim());
  const cut = all.length > TEXT_SHOWN ? `${all.slice(0, TEXT_SHOWN).join("")}…` : all.join("");
  const own = JSON.stringify(source.positions) === JSON.stringify(positions) ? undefined : source.positions;
  const conversation = source.text === undefined ? "the conversation that ends with " : "";
  return [`that of ${conversation}“${cut}”`, inSource(own)].filter((part) => part !== "").join(" ");
}

function inSource(positions: Positions | undefined): string {
  if (positions === undefined || positions === "all") return "";
  if (positions === "last_prompt") return "at its last token";
  const at = typeof positions === "string" ? undefined : promptPositions(positions);
  return at === undefined ? "at positions of its own" : `at its ${positionsSaid(at)}`;
}

function atLayers(edit: Edit): string {
  const { layers } = edit;
  // the words for a site have its layers
  return layers === undefined || sortOf(edit) === "site" ? "" : `at ${layersIn(layers)}`;
}

function layersIn(layers: NonNullable<Edit["layers"]>): string {
  if (!("from" in layers)) return layersSaid(layers);
  return layers.from === layers.to ? `layer ${layers.from}` : `layers ${layers.from} to ${layers.to}`;
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
  const at = promptPositions(positions);
  if (at !== undefined) return `at ${positionsSaid(at)}`;
  const keys = Object.keys(positions);
  const { after_text, roles } = positions;
  if (keys.length === 1 && typeof after_text === "string") return `after the text “${after_text}”`;
  if (keys.length === 1 && Array.isArray(roles)) return `in the messages of the ${roles.join(", ")}`;
  return "at positions of its own";
}

/** The positions of the prompt that positions name, where they name nothing else. */
function promptPositions(positions: Exclude<Positions, string>): number[] | undefined {
  const { prompt_positions: at } = positions;
  const isAll = Object.keys(positions).length === 1 && Array.isArray(at) && at.length > 0;
  return isAll && at.every((one) => typeof one === "number") ? at : undefined;
}

/** `position 5`, `positions 2, 5 and 9`; of many, their number. */
function positionsSaid(at: readonly number[]): string {
  if (at.length > POSITIONS_SHOWN) return `${at.length} positions`;
  return `${at.length === 1 ? "position" : "positions"} ${listed(at)}`;
}

/** `2, 5 and 9`. */
function listed(numbers: readonly number[]): string {
  const said = numbers.map(written);
  return said.length < 2 ? said.join("") : `${said.slice(0, -1).join(", ")} and ${said.at(-1)}`;
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
export function formula(edit: Edit): { formula: string; letters: string } {
  const { op, unit } = edit;
  const sort = sortOf(edit);
  const x = "x is the value at one token";
  const plain = editKind(op, sort)?.formula ?? "";
  if (sort === "feature") {
    const largest = unit === "max" ? ", value is multiplied by the largest activation that is known" : "";
    const other = op === "replace" ? ", a′ its activation in the other text" : "";
    return { formula: plain, letters: `${x}, a the activation of the feature${other}, d its decoder direction${largest}` };
  }
  if (op === "replace") return { formula: plain, letters: `${x}, ${sort === "site" ? "s the value in the other text" : "v the vector at the layer"}` };
  const made = unit === "unit" ? "x + value · v̂" : unit === "residual" ? "x + value · |x| · v̂" : plain;
  const other = op === "swap" ? ", t̂ the other vector with length 1" : "";
  const letters = `${x}, v the vector at the layer, v̂ = v / |v|, p = x · v̂ the part of x along it${other}`;
  return { formula: made, letters };
}

/** The name of a feature without its label: `3:90`, or `#90` where the layer is not named. */
export function plainName({ index, layer }: FeatureName): string {
  return layer === undefined ? `#${index}` : `${layer}:${index}`;
}
