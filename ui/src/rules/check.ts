// The figures of an SAE's self-check and of a corpus, beside what its checkpoint claims, each with the scale on which it
// is drawn; and what was read for them.
import { MEANS } from "./words";
import { count, decimal, isMeasured, percent } from "./bytes";

export interface CheckFigure {
  name: string;
  about: string;
  /** What is drawn: from the first number to the second one; null where nothing was measured. */
  drawn: readonly [number, number] | null;
  says: string;
  /** Null where the checkpoint claims nothing. */
  claimed: number | null;
  claim: string | null;
  /** The number at the end of the scale; null where the figure has no scale to be drawn on. */
  scale: number | null;
}
export interface Check {
  text?: string;
  tokens?: number;
  features_fired?: number;
  l0?: number;
  fvu?: number;
  residual_norm?: number;
  decoder_norm_min?: number;
  decoder_norm_max?: number;
}

/** What a corpus shows of the SAE. */
export interface CorpusCheck {
  corpus_id: string;
  name: string;
  tokens: number;
  features_fired: number;
  never_fired: number;
  l0: number | null;
}
/** What is known of an attached SAE. `k` is how many features a top-k SAE chooses at each token. */
export interface Known {
  check: Check;
  over: CorpusCheck | null;
  k: number | null;
  claimedL0: number | null;
}

/** The room that a scale has behind its largest number. */
const ROOM = 1.25;

/** The mean number of features that fire at a token: over the corpus where one was read. A top-k SAE has the same number
 * in any model, so it has none here. */
export function l0Of({ check, over, k }: Known): number | null {
  return k === null ? (over?.l0 ?? check.l0 ?? null) : null;
}

export function checkFigures(known: Known): CheckFigure[] {
  const { check, over, k, claimedL0 } = known;
  const { fvu, residual_norm: norm, decoder_norm_min: least, decoder_norm_max: most } = check;
  const isRange = isMeasured(least) && isMeasured(most);
  const l0 = l0Of(known);
  const features = over === null ? 0 : over.features_fired + over.never_fired;
  const found: (CheckFigure | false)[] = [
    k === null && {
      name: "L0",
      about: MEANS.l0,
      drawn: isMeasured(l0) ? [0, l0] : null,
      says: decimal(l0, 1),
      claimed: claimedL0,
      claim: claimedL0 === null ? null : decimal(claimedL0, Number.isInteger(claimedL0) ? 0 : 1),
      scale: upTo(Math.max(l0 ?? 0, claimedL0 ?? 0)),
    },
    {
      name: "FVU",
      about: MEANS.fvu,
      drawn: isMeasured(fvu) ? [0, fvu] : null,
      says: decimal(fvu, 3),
      claimed: null,
      claim: null,
      scale: Math.max(1, (fvu ?? 0) * ROOM),
    },
    over !== null && {
      name: "features that fire",
      about: "how many features fire at any token of the corpus",
      drawn: [0, over.features_fired],
      says: `${count(over.features_fired)} of ${count(features)}`,
      claimed: null,
      claim: null,
      scale: features,
    },
    {
      name: "decoder norms",
      about: "the smallest and the largest norm of a decoder row",
      drawn: isRange ? [least, most] : null,
      says: isRange ? `${decimal(least)} to ${decimal(most)}` : decimal(null),
      claimed: null,
      claim: null,
      scale: upTo(most ?? 0),
    },
    {
      name: "residual norm",
      about: "the median norm of the activations that the SAE reads",
      drawn: null,
      says: decimal(norm, (norm ?? 0) >= 100 ? 0 : 1),
      claimed: null,
      claim: null,
      scale: null,
    },
  ];
  return found.filter((figure) => figure !== false);
}

/** What was read for the figures, in sentences. */
export function readWords({ check, over, k }: Known): string[] {
  const { text, tokens, features_fired: fired } = check;
  const isRead = text !== undefined && isMeasured(tokens);
  return [
    isRead && `The self-check read ${text}, ${count(tokens)} tokens.`,
    isRead && over === null && isMeasured(fired) && `${count(fired)} features fired there; other texts may wake others.`,
    k !== null && `The SAE always chooses ${count(k)} features at a token (top-k), so their number is no evidence.`,
  ].filter((sentence) => sentence !== false);
}

/** How far the measured L0 is from the claimed one, in words; null where one of them is missing. */
export function l0Words(measured: number | null | undefined, claimed: number | null): string | null {
  if (!isMeasured(measured) || !isMeasured(claimed) || claimed <= 0 || measured <= 0) return null;
  const times = measured / claimed;
  if (times > 0.8 && times < 1.25) return "about as claimed";
  return times > 1 ? `${count(Number(times.toPrecision(2)))} times the claim` : `${percent(times)} of the claim`;
}

function upTo(most: number): number | null {
  return most > 0 ? most * ROOM : null;
}
