// The state of the Steer page that its link carries, and the comparison that it asks for.
import { EDITS_MAXIMUM, isEdits, type PageEdit } from "./edits";
import { choice, flag, json, number, read, text, written, type State } from "./link";
import { LIMIT } from "./strength";
import { INTENSITIES_MAXIMUM, isIntensities } from "./typed";

/** A feature of the page: index, value, whether it is on, and its SAE with its layer (`sae_id@layer`), which is empty
 * where no SAE is attached to say which one is meant. It is short, because it stands in the link. */
export type Chosen = readonly [index: number, value: number, isOn: 0 | 1, sae: string];
/** A feature in a link. One without an SAE is of the SAE that the link names for all of them. */
export type Linked = Chosen | readonly [index: number, value: number, isOn: 0 | 1];
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
/** The most features that the page steers at once, and the most messages of its conversation. */
export const FEATURES_MAXIMUM = 100;
export const MESSAGES_MAXIMUM = 200;
const KEY = /^([^@]{1,50})@(\d{1,5})$/;

export const STEER = {
  /** The form of the prompt. */
  as: choice(["chat", "prompt"]),
  prompt: text(),
  /** The conversation; null where none was written yet. */
  chat: json<readonly Message[] | null>(null, `at most ${MESSAGES_MAXIMUM} messages with role and content`, isMessages),
  /** The features of the page; null where none were chosen yet. */
  f: json<readonly Linked[] | null>(
    null,
    `at most ${FEATURES_MAXIMUM} features such as [90,52.5,1,"sae_a@3"], with values from -${LIMIT} to ${LIMIT}`,
    isLinked,
  ),
  /** Further edits of the page, of features and of vectors, and whether they keep the norm of what they change. */
  e: json<readonly PageEdit[]>(
    [],
    `at most ${EDITS_MAXIMUM} edits such as {"op":"ablate","vector":"vec_a"}, as interventions have them`,
    isEdits,
  ),
  norm: flag(false),
  for: choice(["page", "live"]),
  seed: number(1, 0, SEED_MAXIMUM),
  max: number(96, 1, 100_000),
  t: number(0, 0, 2),
  p: number(1, 0, 1),
  /** The model that the link was made with, and the SAE (`sae_id@layer`) whose features are added and read. */
  model: text(),
  sae: text(),
  diff: flag(true),
  auto: flag(true),
  left: choice(["text", "tokens"]),
  right: choice(["text", "tokens"]),
  /** The feature that colours the tokens; -1 lets the page choose. */
  pick: number(-1, -1, 2 ** 31),
  sweep: json<readonly number[]>(SWEEP, `1 to ${INTENSITIES_MAXIMUM} numbers from 0 to 2`, isIntensities),
};
type LinkState = State<typeof STEER>;
export type SteerState = Omit<LinkState, "f"> & { f: readonly Chosen[] | null };

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

/** The SAE and its layer in a key; null where the key names none. */
export function placeOf(key: string): Place | null {
  const [, sae_id, layer] = KEY.exec(key) ?? [];
  return sae_id === undefined ? null : { sae_id, layer: Number(layer) };
}

/** The name by which `/v1` serves a model: with its quantization where several models have its name. */
export function servedName(model: { name: string; quantization: string }, all: readonly { name: string }[]): string {
  return all.filter(({ name }) => name === model.name).length > 1 ? `${model.name}:${model.quantization}` : model.name;
}

/** The features of a link, each with its SAE. */
export function placed(features: readonly Linked[], sae: string): Chosen[] {
  return features.map(([index, value, isOn, own]) => [index, value, isOn, own || sae]);
}

/** The features that are on, with their values. */
export function switchedOn(features: readonly Chosen[]): Chosen[] {
  return features.filter(([, value, isOn]) => isOn === 1 && value !== 0);
}

/** The values of the features that are on, by SAE and index. */
export function valuesOf(features: readonly Chosen[]): Record<string, Record<string, number>> {
  const values: Record<string, Record<string, number>> = {};
  for (const [index, value, , sae] of switchedOn(features)) (values[sae] ??= {})[index] = value;
  return values;
}

/** The features with one of them set: changed where it is there, else added at the end. */
export function set(features: readonly Chosen[], chosen: Chosen): Chosen[] {
  const isThere = features.some((one) => isSame(one, chosen));
  return isThere ? features.map((one) => (isSame(one, chosen) ? chosen : one)) : [...features, chosen];
}

export function isSame([index, , , sae]: Chosen, [other, , , place]: Chosen): boolean {
  return index === other && sae === place;
}

/** The features by their SAEs, in the order in which these came. */
export function bySae(features: readonly Chosen[]): Map<string, Chosen[]> {
  const groups = new Map<string, Chosen[]>();
  for (const one of features) groups.set(one[3], [...(groups.get(one[3]) ?? []), one]);
  return groups;
}

/** The SAEs of features that are on which are not attached. */
export function missing(features: readonly Chosen[], attached: readonly Place[]): string[] {
  const there = new Set(attached.map(keyOf));
  return Object.keys(valuesOf(features)).filter((sae) => sae !== "" && !there.has(sae));
}

/**
 * The query of the page where a link without a prompt opens it, such as *Steer with this* of a feature: the rest of the
 * state is what this tab had last, and features of the same SAE stay. Null where the link is whole.
 */
export function opened(query: URLSearchParams, kept: string | null): URLSearchParams | null {
  if (kept === null || query.size === 0 || query.has("chat") || query.has("prompt")) return null;
  const before = read(new URLSearchParams(kept), STEER);
  const given = read(query, STEER);
  const result = new URLSearchParams(kept);
  for (const [name, value] of query) result.set(name, value);
  if (query.has("e")) {
    const same = new Set(before.e.map((edit) => JSON.stringify(edit)));
    const e = [...before.e, ...given.e.filter((edit) => !same.has(JSON.stringify(edit)))].slice(-EDITS_MAXIMUM);
    return written(result, STEER, { e, for: given.for });
  }
  if (!query.has("f")) return result;
  const sae = given.sae || before.sae;
  const brought = placed(given.f ?? [], sae);
  const both = brought.reduce(set, placed(before.f ?? [], before.sae || sae));
  const f = both.length > FEATURES_MAXIMUM ? brought : both;
  // the features of a link are for its page, also where the page was last live for everyone
  return written(result, STEER, { f, for: given.for });
}

/** Whether anything is added to the model at intensity 1. */
export function steers(state: SteerState, live: Live | undefined, place: Place | null): boolean {
  return place !== null && steered(state, live, place).length > 0;
}

/** The live values as features. `place` is the SAE whose values stand for themselves in the answer. */
export function liveFeatures(live: Live | undefined, place: Place): Chosen[] {
  return Object.entries({ [keyOf(place)]: live?.values ?? {}, ...live?.others }).flatMap(([sae, values]) =>
    Object.entries(values)
      .filter(([, value]) => value !== 0)
      .map(([index, value]): Chosen => [Number(index), value, 1, sae]),
  );
}

/** The features that a comparison multiplies: those of the page, or the live values as they are. */
export function steered(state: SteerState, live: Live | undefined, place: Place): Chosen[] {
  if (state.for === "page") return switchedOn(state.f ?? []);
  return live?.enabled === true ? liveFeatures(live, place) : [];
}

/** Features as a request names them, in an order that does not depend on the order in which they were added. */
export function named(features: readonly Chosen[]) {
  return features
    .toSorted(([one, , , a], [other, , , b]) => (a === b ? one - other : a < b ? -1 : 1))
    .map(([index, value, , sae]) => ({ index, value, ...placeOf(sae) }));
}

type Written = Pick<SteerState, "as" | "prompt" | "chat">;

/** The prompt as the request has it. A conversation loses messages without text. */
export function promptOf(state: Written): { prompt: string } | { messages: Message[] } {
  if (state.as === "prompt") return { prompt: state.prompt };
  return {
    messages: (state.chat ?? [])
      .filter(({ content }) => content.trim() !== "")
      .map(({ role, content }) => ({ role, content })),
  };
}

export function isPromptEmpty(state: Written): boolean {
  const written = promptOf(state);
  return "prompt" in written ? written.prompt === "" : written.messages.length === 0;
}

export function samplingOf({ seed, max, t, p }: SteerState) {
  return { max_tokens: max, temperature: t, top_p: p, seed };
}

/** How many features each token may have, so that the whole answer stays under the service's 65,536. */
export function listed(state: Written & Pick<SteerState, "max">, sides: number): number {
  const written = promptOf(state);
  const whole =
    "prompt" in written ? written.prompt : written.messages.map(({ content }) => `${content}........`).join("");
  // a token has two bytes or more on average, and a template adds some tokens
  const tokens = new TextEncoder().encode(whole).length / 2 + state.max + 64;
  return Math.max(1, Math.min(32, Math.floor(65_536 / (sides * tokens))));
}

/** A strength to begin with: the typical one on the steps of the slider, or 10 where it is not known. */
export function beginning(typical: number | null | undefined): number {
  if (typical == null || !(typical > 0)) return 10;
  const step = typical < 10 ? 0.1 : typical < 50 ? 0.5 : 1;
  return Math.min(LIMIT, Number((Math.round(typical / step) * step).toFixed(1)));
}

function isMessages(value: unknown): value is readonly Message[] | null {
  return value === null || (Array.isArray(value) && value.length <= MESSAGES_MAXIMUM && value.every(isMessage));
}

function isMessage(value: unknown): value is Message {
  const message = value as Partial<Message> | null;
  return typeof message?.role === "string" && typeof message.content === "string";
}

function isLinked(value: unknown): value is readonly Linked[] | null {
  if (value === null) return true;
  return (
    Array.isArray(value) &&
    value.length <= FEATURES_MAXIMUM &&
    value.every(
      (one: unknown) =>
        Array.isArray(one) &&
        Number.isInteger(one[0]) &&
        one[0] >= 0 &&
        typeof one[1] === "number" &&
        Math.abs(one[1]) <= LIMIT &&
        (one[2] === 0 || one[2] === 1) &&
        (one.length === 3 || (one.length === 4 && typeof one[3] === "string" && (one[3] === "" || placeOf(one[3]) !== null))),
    )
  );
}
