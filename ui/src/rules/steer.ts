// The state of the Steer page that its link carries, and the comparison that it asks for.
import { choice, flag, json, number, read, text, written, type State } from "./link";
import { LIMIT } from "./strength";

/** A feature of the page: index, value, and whether it is on. It is short, because it stands in the link. */
export type Chosen = readonly [index: number, value: number, isOn: 0 | 1];
export interface Message {
  role: string;
  content: string;
}
export const ROLES = ["user", "assistant", "system"] as const;
/** For whom the values are: only for the requests of this page, or for every request of everybody. */
export type Reach = "page" | "live";
export type View = "text" | "tokens";

export const SEED_MAXIMUM = 2 ** 32 - 1;
export const SWEEP = [0, 0.5, 1, 1.5];
const INTENSITIES_MAXIMUM = 16;

export const STEER = {
  /** The form of the prompt. */
  as: choice(["chat", "prompt"]),
  prompt: text(),
  /** The conversation; null where none was written yet. */
  chat: json<readonly Message[] | null>(null, isMessages),
  /** The features of the page; null where none were chosen yet. */
  f: json<readonly Chosen[] | null>(null, isChosen),
  for: choice(["page", "live"]),
  seed: number(1, 0, SEED_MAXIMUM),
  max: number(96, 1, 100_000),
  t: number(0, 0, 2),
  p: number(1, 0, 1),
  /** The model and the SAE (`sae_id@layer`) that the link was made with. */
  model: text(),
  sae: text(),
  diff: flag(true),
  auto: flag(true),
  left: choice(["text", "tokens"]),
  right: choice(["text", "tokens"]),
  /** The feature that colours the tokens; -1 lets the page choose. */
  pick: number(-1, -1),
  sweep: json<readonly number[]>(SWEEP, isIntensities),
};
export type SteerState = State<typeof STEER>;

/** An attached SAE, and the live values as the service answers them. */
export interface Place {
  sae_id: string;
  layer: number;
}
export interface Live {
  enabled: boolean;
  values: Readonly<Record<string, number>>;
  others?: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

export function keyOf({ sae_id, layer }: Place): string {
  return `${sae_id}@${layer}`;
}

/** The name by which `/v1` serves a model: with its quantization where several models have its name. */
export function servedName(model: { name: string; quantization: string }, all: readonly { name: string }[]): string {
  return all.filter(({ name }) => name === model.name).length > 1 ? `${model.name}:${model.quantization}` : model.name;
}

/** The values of the page's features that are on. */
export function valuesOf(features: readonly Chosen[]): Record<string, number> {
  return Object.fromEntries(features.filter(([, value, isOn]) => isOn === 1 && value !== 0).map(([i, v]) => [i, v]));
}

/** The features with one of them set: changed where it is there, else added at the end. */
export function set(features: readonly Chosen[], index: number, value: number, isOn: 0 | 1 = 1): Chosen[] {
  const chosen: Chosen = [index, value, isOn];
  const isThere = features.some(([other]) => other === index);
  return isThere ? features.map((one) => (one[0] === index ? chosen : one)) : [...features, chosen];
}

/**
 * The query of the page where a link without a prompt opens it, such as *Steer with this* of a feature: the rest of the
 * state is what this tab had last, and features of the same SAE stay. Null where the link is whole.
 */
export function opened(query: URLSearchParams, kept: string | null): URLSearchParams | null {
  if (kept === null || query.size === 0 || query.has("chat") || query.has("prompt")) return null;
  const before = read(new URLSearchParams(kept), STEER);
  const given = read(query, STEER);
  const isSame = !query.has("sae") || before.sae === "" || before.sae === given.sae;
  const f = (given.f ?? []).reduce(
    (all, [index, value, isOn]) => set(all, index, value, isOn),
    [...(isSame ? (before.f ?? []) : [])],
  );
  const result = new URLSearchParams(kept);
  for (const [name, value] of query) result.set(name, value);
  return query.has("f") ? written(result, STEER, { f }) : result;
}

/** Whether anything is added to the model at intensity 1. */
export function steers(state: SteerState, live: Live | undefined): boolean {
  if (state.for === "page") return Object.keys(valuesOf(state.f ?? [])).length > 0;
  return live?.enabled === true && [live.values, ...Object.values(live.others ?? {})].some(hasValues);
}

/**
 * What a comparison multiplies, and by what.
 *
 * The live values are sent as they are, so that the comparison shows exactly what steers. Only where several SAEs have
 * live values, which one request cannot name, the service takes them itself, at the intensity of what serves.
 */
export function base(state: SteerState, place: Place, live: Live | undefined, serving: number) {
  const { sae_id, layer } = place;
  if (state.for === "page") return { one: 1, body: { steering: valuesOf(state.f ?? []), sae_id, layer } };
  if (Object.values(live?.others ?? {}).some(hasValues)) return { one: serving, body: {} };
  return { one: 1, body: { steering: { ...live?.values }, sae_id, layer } };
}

/** The prompt as the request has it. A conversation loses messages without text. */
export function promptOf(state: SteerState): { prompt: string } | { messages: Message[] } {
  if (state.as === "prompt") return { prompt: state.prompt };
  return {
    messages: (state.chat ?? [])
      .filter(({ content }) => content.trim() !== "")
      .map(({ role, content }) => ({ role, content })),
  };
}

export function isPromptEmpty(state: SteerState): boolean {
  const written = promptOf(state);
  return "prompt" in written ? written.prompt === "" : written.messages.length === 0;
}

export function samplingOf({ seed, max, t, p }: SteerState) {
  return { max_tokens: max, temperature: t, top_p: p, seed };
}

/** How many features each token may have, so that the whole answer stays under the service's 65,536. */
export function listed(state: SteerState, sides: number): number {
  const written = promptOf(state);
  const whole =
    "prompt" in written ? written.prompt : written.messages.map(({ content }) => `${content}........`).join("");
  // a token has two bytes or more on average, and a template adds some tokens
  const tokens = new TextEncoder().encode(whole).length / 2 + state.max + 64;
  return Math.max(1, Math.min(32, Math.floor(65_536 / (sides * tokens))));
}

/** Lines such as `90:52.5, 103:20` as features; null where the text is not such a list. */
export function pasted(written: string): { index: number; value: number }[] | null {
  const parts = written.split(/[\s,;]+/).filter((part) => part !== "");
  const pairs = parts.map((part) => /^(\d{1,9})[:=]([+-]?\d+(?:\.\d+)?)$/.exec(part));
  if (parts.length === 0) return null;
  const features = pairs.map((pair) => ({ index: Number(pair?.[1]), value: Number(pair?.[2]) }));
  return features.every(({ index, value }) => Number.isInteger(index) && Math.abs(value) <= LIMIT) ? features : null;
}

/** Intensities such as `0, 0.5 1` in ascending order, each once; null where the text is not such a list. */
export function intensities(written: string): number[] | null {
  const numbers = written
    .split(/[\s,;]+/)
    .filter((part) => part !== "")
    .map(Number);
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  return isIntensities(sorted) ? sorted : null;
}

/** A strength to begin with: the typical one on the steps of the slider, or 10 where it is not known. */
export function beginning(typical: number | null | undefined): number {
  if (typical == null || !(typical > 0)) return 10;
  const step = typical < 10 ? 0.1 : typical < 50 ? 0.5 : 1;
  return Math.min(LIMIT, Number((Math.round(typical / step) * step).toFixed(1)));
}

function hasValues(values: Readonly<Record<string, number>>): boolean {
  return Object.values(values).some((value) => value !== 0);
}

function isMessages(value: unknown): value is readonly Message[] | null {
  return value === null || (Array.isArray(value) && value.every(isMessage));
}

function isMessage(value: unknown): value is Message {
  const message = value as Partial<Message> | null;
  return typeof message?.role === "string" && typeof message.content === "string";
}

function isChosen(value: unknown): value is readonly Chosen[] | null {
  if (value === null) return true;
  return (
    Array.isArray(value) &&
    value.every(
      (one: unknown) =>
        Array.isArray(one) &&
        Number.isInteger(one[0]) &&
        one[0] >= 0 &&
        typeof one[1] === "number" &&
        Math.abs(one[1]) <= LIMIT &&
        (one[2] === 0 || one[2] === 1),
    )
  );
}

function isIntensities(value: unknown): value is readonly number[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.length <= INTENSITIES_MAXIMUM &&
    new Set(value).size === value.length &&
    value.every((one) => typeof one === "number" && one >= 0 && one <= 2)
  );
}
