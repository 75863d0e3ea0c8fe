// What recorded answers say, in words.
import type { Edit } from "./edits";
import { isRecord } from "./errors";

/** A part of a request: who says it, and the text. */
export interface Said {
  role: string | null;
  text: string;
}

const KINDS: Record<string, string> = {
  "/v1/chat/completions": "chat",
  "/v1/completions": "completion",
  "/v1/responses": "response",
};

export function kindOf(route: string): string {
  return KINDS[route] ?? route;
}

/** The texts that a request sent, of whichever route. Parts that are no text are shown as JSON. */
export function saidIn(body: Record<string, unknown>): Said[] {
  const before = typeof body["instructions"] === "string" ? [{ role: "instructions", text: body["instructions"] }] : [];
  const asked = body["messages"] ?? body["input"] ?? body["prompt"];
  const parts = Array.isArray(asked) ? asked : asked === undefined ? [] : [asked];
  return [...before, ...parts.map(saidBy)];
}

function saidBy(part: unknown): Said {
  if (!isRecord(part)) return { role: null, text: textOf(part) };
  return { role: typeof part["role"] === "string" ? part["role"] : null, text: textOf(part["content"] ?? part) };
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The values of steering by the SAE that they are at, the largest first. */
export function valuesOf(
  values: Record<string, Record<string, number>>,
): { key: string; features: { index: number; value: number }[] }[] {
  return Object.entries(values).map(([key, features]) => ({
    key,
    features: Object.entries(features)
      .map(([index, value]) => ({ index: Number(index), value }))
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value)),
  }));
}

/** The edits that a request names itself; those of a profile or of the live steering are not in it. */
export function editsOf(body: Record<string, unknown>): Edit[] {
  const asked = body["interventions"];
  const edits = isRecord(asked) ? asked["edits"] : [];
  return Array.isArray(edits) ? edits.filter(isEdit) : [];
}

function isEdit(value: unknown): value is Edit {
  if (!isRecord(value) || typeof value["op"] !== "string") return false;
  const feature = value["feature"];
  const isNamed = typeof value["vector"] === "string" || isRecord(value["source"]);
  return isNamed || (isRecord(feature) && typeof feature["index"] === "number");
}
