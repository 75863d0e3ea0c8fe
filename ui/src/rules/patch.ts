// What a patch sweep is asked for: two texts, the places that are patched, and the metric.
import { choice, flag, number, text, type Field, type State } from "./link";
import type { Message } from "./steer";

/** What the values of a site are, in the order of a forward pass. */
export const SITES: Readonly<Record<string, string>> = {
  embed: "The embedding of the token; it has no layers",
  resid_pre: "The residual stream before the layer",
  q: "The queries of the heads",
  k: "The keys of the heads",
  v: "The values of the heads",
  hook_z: "The outputs of the heads, before they are put together",
  attn_raw: "The output of the attention module",
  attn_out: "What attention adds to the residual stream",
  resid_mid: "The residual stream between attention and MLP",
  mlp_in: "The input of the MLP",
  mlp_neurons: "The neurons of the MLP",
  mlp_raw: "The output of the MLP module",
  mlp_out: "What the MLP adds to the residual stream",
  resid_post: "The residual stream after the layer",
};

/** A site of the loaded model, as the service lists it. */
export interface ModelSite {
  site: string;
  heads: number | null;
  can_write: boolean;
}
/** A site that can be patched. */
export interface Offered {
  site: string;
  hasHeads: boolean;
}

/** The sites of a model at which values can be written, in the order of a forward pass. */
export function offered(listed: readonly ModelSite[]): Offered[] {
  const heads = new Map<string, boolean>();
  for (const { site, ...one } of listed) {
    if (one.can_write) heads.set(site, (heads.get(site) ?? true) && one.heads !== null);
  }
  const names = Object.keys(SITES);
  const found = [...heads].map(([site, hasHeads]) => ({ site, hasHeads }));
  return found.sort((one, other) => names.indexOf(one.site) - names.indexOf(other.site));
}

export const REPEATS_MAXIMUM = 64;
const NUMBERS_MAXIMUM = 16_384;

const sites: Field<readonly string[]> = {
  fallback: ["resid_post"],
  expected: "names of sites, separated by commas",
  read(written) {
    const names = [...new Set(written.split(",").filter((name) => name !== ""))];
    return names.length <= 16 && names.every((name) => /^[a-z_]{1,40}$/.test(name)) ? names : undefined;
  },
  write: (names) => names.join(","),
};

export const PATCH = {
  /** What the texts are: the beginning of a text, or a message of a user. */
  as: choice(["prompt", "chat"]),
  clean: text(),
  corrupt: text(),
  sites,
  /** Layers and positions as they are written, such as `0-3, 8`. */
  layers: text("all"),
  at: choice(["each", "all", "some"]),
  positions: text(),
  /** Pairs of positions of the clean and the corrupt text, for texts of different lengths, such as `0-3:0-3, 5:6`. */
  align: text(),
  heads: flag(false),
  direction: choice(["denoise", "noise"]),
  metric: choice(["logit_difference", "logprob", "kl"]),
  target: text(),
  against: text(),
  repeats: number(4, 0, REPEATS_MAXIMUM),
  /** The job whose result is shown. */
  job: text(),
};
export type PatchState = State<typeof PATCH>;
export type PatchText = string | { messages: Message[] };
type Token = string | number;

export interface PatchBody {
  clean: PatchText;
  corrupt: PatchText;
  align?: [number, number][];
  sites: string[];
  layers: number[] | "all";
  positions: "each" | "all" | number[] | number[][];
  heads?: "each";
  direction: "denoise" | "noise";
  metric:
    | { kind: "logit_difference"; target_token: Token; against_token: Token }
    | { kind: "logprob"; target_token: Token }
    | { kind: "kl" };
  noise_repeats: number;
}

/** What the form has before anything is written, for the bundled model: its sailor and its farmer walk to other places. */
export const EXAMPLE: Partial<PatchState> = {
  clean: "The sailor walked to the",
  corrupt: "The farmer walked to the",
  target: " waves",
  against: " hens",
};

/** Whole numbers such as `0-3, 8, -1`; null where the text is no such list, or an empty one. */
export function numbersIn(written: string): number[] | null {
  const found = new Set<number>();
  for (const part of written.split(/[\s,]+/).filter((one) => one !== "")) {
    const [, first, last = first] = /^(-?\d{1,7})(?:[-–](\d{1,7}))?$/.exec(part) ?? [];
    if (first === undefined || Number(last) < Number(first) || Number(last) - Number(first) > NUMBERS_MAXIMUM) return null;
    for (let at = Number(first); at <= Number(last); at += 1) found.add(at);
  }
  return found.size === 0 || found.size > NUMBERS_MAXIMUM ? null : [...found];
}

/** The layers that are written; null where they cannot be read. */
export function layersIn(written: string): number[] | "all" | null {
  if (/^\s*(all)?\s*$/i.test(written)) return "all";
  const found = numbersIn(written);
  return found?.every((layer) => layer >= 0) === true ? found : null;
}

/** The positions that are written, each alone, or with semicolons between groups; null where they cannot be read. */
export function positionsIn({ at, positions }: Pick<PatchState, "at" | "positions">): PatchBody["positions"] | null {
  if (at !== "some") return at;
  if (!positions.includes(";")) return numbersIn(positions);
  const groups = positions.split(";").filter((part) => part.trim() !== "").map(numbersIn);
  const whole = groups.filter((group) => group !== null);
  return whole.length === groups.length && whole.length > 0 ? whole : null;
}

/** The pairs that are written, such as `0-3:0-3, 5:6`; null where they cannot be read. No pairs match equal positions. */
export function pairsIn(written: string): [number, number][] | null {
  const found: [number, number][] = [];
  for (const part of written.split(/[\s,]+/).filter((one) => one !== "")) {
    const [clean, corrupt, ...more] = part.split(":").map(numbersIn);
    if (!clean || !corrupt || more.length > 0 || clean.length !== corrupt.length) return null;
    clean.forEach((at, number) => found.push([at, corrupt[number] ?? at]));
  }
  return found.length > NUMBERS_MAXIMUM ? null : found;
}

/** Whether all chosen sites have heads, so that each head can be patched alone. */
export function haveHeads(names: readonly string[], sites: readonly Offered[]): boolean {
  const has = (name: string) => sites.some(({ site, hasHeads }) => site === name && hasHeads);
  return names.length > 0 && names.every(has);
}

/** What a sweep lacks, in words; null where it can be sent. */
export function lacking(state: PatchState): string | null {
  const { clean, corrupt, metric, target, against } = state;
  if (clean === "" || corrupt === "") return "Write both texts.";
  if (clean === corrupt) return "The two texts are the same.";
  if (state.sites.length === 0) return "Choose a site.";
  if (layersIn(state.layers) === null) return "Write layers such as 0-3, 8, or all.";
  if (positionsIn(state) === null) return "Write positions such as 1, 4-6, or groups with a semicolon between them.";
  if (pairsIn(state.align) === null) return "Write pairs of tokens such as 0-3:0-3, 5:6.";
  if (metric !== "kl" && target === "") return "Write the token that the clean text leads to.";
  if (metric !== "logit_difference") return null;
  if (against === "") return "Write the token that it is compared with.";
  return target === against ? "The two tokens of the metric are the same." : null;
}

/** A text as a request has it. */
export function textOf(written: string, as: PatchState["as"]): PatchText {
  return as === "prompt" ? written : { messages: [{ role: "user", content: written }] };
}

/** A token as it is written; `#1234` is the id of one. */
function tokenOf(written: string): Token {
  const id = /^#(\d{1,9})$/.exec(written)?.[1];
  return id === undefined ? written : Number(id);
}

/** The request of a sweep that lacks nothing, with the sites that the model has. */
export function bodyOf(state: PatchState, sites: readonly Offered[]): PatchBody {
  const { as, direction, target, against } = state;
  const pairs = pairsIn(state.align) ?? [];
  const target_token = tokenOf(target);
  return {
    clean: textOf(state.clean, as),
    corrupt: textOf(state.corrupt, as),
    ...(pairs.length > 0 ? { align: pairs } : {}),
    sites: [...state.sites],
    layers: layersIn(state.layers) ?? "all",
    positions: positionsIn(state) ?? "each",
    ...(state.heads && haveHeads(state.sites, sites) ? { heads: "each" } : {}),
    direction,
    metric:
      state.metric === "kl"
        ? { kind: "kl" }
        : state.metric === "logprob"
          ? { kind: "logprob", target_token }
          : { kind: "logit_difference", target_token, against_token: tokenOf(against) },
    noise_repeats: state.repeats,
  };
}

/** The metric in words. */
export function metricSaid({ metric, target, against }: Pick<PatchState, "metric" | "target" | "against">): string {
  if (metric === "kl") return "how far the next token is from that of the clean text (KL divergence, nats)";
  const token = target === "" ? "the target token" : `“${target}”`;
  if (metric === "logprob") return `the log-probability that ${token} is next`;
  return `the logit of ${token} less that of ${against === "" ? "the other token" : `“${against}”`}`;
}
