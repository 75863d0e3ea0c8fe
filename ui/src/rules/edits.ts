// Edits of the Steer page: what a request does to features and vectors, in the form of the field `interventions`.
import { OPS, type Op, type Sort } from "./editKinds";

/** A feature that an edit names. */
export interface FeatureName {
  index: number;
  sae_id?: string;
  layer?: number;
}
export type Unit = "activation" | "max" | "raw" | "unit" | "residual";
export type PositionName = "all" | "prompt" | "last_prompt" | "generated" | "output";
/** Where an edit acts: a name, or an object as the request takes it. */
export type Positions = PositionName | Readonly<Record<string, unknown>>;

/** The text or the conversation whose values a replacement writes, and where they are in it. */
export interface Source {
  text?: string;
  messages?: readonly { role: string; content: string }[];
  positions?: Positions;
  capture?: string;
  row?: number;
  mean_of?: string;
}

/** A condition as the request takes it. One of several parts (`any`, `all`) is kept as it is. */
export interface When {
  feature?: FeatureName;
  vector?: string;
  above?: number;
  below?: number;
  over?: "token" | "prompt_max" | "prompt_mean" | "last_prompt";
  hold?: "token" | "rest" | number;
  any?: readonly unknown[];
  all?: readonly unknown[];
}
export interface Edit {
  op: Op;
  feature?: FeatureName;
  /** The id or the name of a stored vector. */
  vector?: string;
  /** The vector that a swap puts in the place of this one. */
  to?: string;
  value?: number;
  unit?: Unit;
  layers?: readonly number[] | { from: number; to: number };
  positions?: Positions;
  when?: When;
  /** Of a replacement: where its values come from, and the site and the heads whose value it replaces. */
  source?: Source;
  site?: string;
  layer?: number;
  heads?: readonly number[];
}
/** What an edit names. A replacement without a feature and a vector names a site. */
export function sortOf({ feature, vector, source }: Edit): Sort {
  if (feature !== undefined) return "feature";
  return vector === undefined && source !== undefined ? "site" : "vector";
}
/** An edit of the page. One that is off stays in the link, and in no request. */
export type PageEdit = Edit & { off?: 1 };

export const EDITS_MAXIMUM = 64;

/** The names of features and vectors, where they are known. */
export interface Names {
  feature(name: FeatureName): string;
  vector(id: string): string;
}

/** Whether a value of a link can be an edit. The service checks the rest, and names the place of a fault. */
export function isEdits(value: unknown): value is readonly PageEdit[] {
  return Array.isArray(value) && value.length <= EDITS_MAXIMUM && value.every(isEdit);
}

function isEdit(value: unknown): value is PageEdit {
  if (typeof value !== "object" || value === null) return false;
  const { op, feature, vector, value: number, positions, when, source } = value as Partial<Record<keyof PageEdit, unknown>>;
  const isFeature = isNamed(feature) && vector === undefined;
  const isVector = typeof vector === "string" && vector !== "" && feature === undefined;
  const isSite = op === "replace" && feature === undefined && vector === undefined && source !== undefined;
  return (
    OPS.includes(op as Op) &&
    (isFeature || isVector || isSite) &&
    (number === undefined || (typeof number === "number" && Number.isFinite(number))) &&
    (typeof positions === "string" || isObject(positions)) &&
    isObject(when) &&
    isObject(source)
  );
}

/** Whether a part of an edit is absent or an object. */
function isObject(part: unknown): boolean {
  return part === undefined || (typeof part === "object" && part !== null);
}

function isNamed(feature: unknown): boolean {
  if (typeof feature !== "object" || feature === null) return false;
  const { index } = feature as Partial<FeatureName>;
  return Number.isInteger(index) && (index ?? -1) >= 0;
}

/** The edits that are on, as a request has them. */
export function sentEdits(edits: readonly PageEdit[]): Edit[] {
  return edits.filter(({ off }) => off !== 1).map(({ off: _, ...edit }) => edit);
}

interface VectorFacts {
  id: string;
  operation: "add" | "project";
  suggested_value: number | null;
  training: { best_layer: number | null } | null;
  measured: { best: { layer: number; strength: number } | null } | null;
}

/** Where a vector acts best: where it was measured, or else where its training tells texts apart best; null where neither is
 * known. */
export function bestLayer({ training, measured }: Pick<VectorFacts, "training" | "measured">): number | null {
  return measured?.best?.layer ?? training?.best_layer ?? null;
}

/** The first edit of a vector: added at its best place, or as its file suggests, or projected out. */
export function vectorEdit(vector: VectorFacts): Edit {
  const { id, operation, suggested_value, measured } = vector;
  const layer = bestLayer(vector);
  const layers = layer === null ? {} : { layers: [layer] };
  if (operation === "project") return { op: "ablate", vector: id, ...layers };
  return { op: "add", vector: id, value: measured?.best?.strength ?? suggested_value ?? 1, ...layers };
}

/** The path of the Steer page with an edit of a vector. */
export function vectorPath(vector: VectorFacts): string {
  return `/steer?${new URLSearchParams({ e: JSON.stringify([vectorEdit(vector)]) })}`;
}
