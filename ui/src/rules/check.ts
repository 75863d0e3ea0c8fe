// The figures of an SAE's self-check, beside what its checkpoint claims, each with the scale on which it is drawn.
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
  l0?: number;
  fvu?: number;
  dead_fraction?: number;
  residual_norm?: number;
  decoder_norm_min?: number;
  decoder_norm_max?: number;
}

/** The room that a scale has behind its largest number. */
const ROOM = 1.25;

export function checkFigures(check: Check, claimedL0: number | null): CheckFigure[] {
  const { l0, fvu, dead_fraction: dead, residual_norm: norm, decoder_norm_min: least, decoder_norm_max: most } = check;
  const isRange = isMeasured(least) && isMeasured(most);
  return [
    {
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
    {
      name: "dead features",
      about: "features that fire on no token of the short text",
      drawn: isMeasured(dead) ? [0, dead] : null,
      says: percent(dead, 1),
      claimed: null,
      claim: null,
      scale: 1,
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
