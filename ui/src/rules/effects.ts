// The strengths at which a feature is measured, and its curves as points of a drawing.
import { decimal } from "./bytes";

/** The largest value of a feature. */
const MOST = 200;
/** Close to each other about the typical strength, where a lever begins to work and the text to break. */
const PARTS = [0.25, 0.5, 0.7, 1, 1.4, 2, 4];

/** The strengths of a measurement: parts and multiples of the typical strength, in steps of a half. */
export function ladderOf(typical: number | null): number[] {
  const unit = typical === null || typical <= 0 ? 10 : typical;
  const steps = PARTS.map((part) => Math.min(MOST, Math.max(0.5, Math.round(2 * part * unit) / 2)));
  return [...new Set(steps)];
}

/** What a measurement suggests, in a sentence, and the strength to steer at; null where there is none. */
export interface Advice {
  said: string;
  strength: number | null;
}

interface Judged {
  suggested: {
    value: number | null;
    low: number | null;
    high: number | null;
    smallest_that_works?: number | null;
    largest_unbroken?: number | null;
  };
  calibrated: { strength: number | null };
  target: unknown;
}

/** What a measurement suggests. Of a result that an earlier version kept, only the calibrated strength is known. */
export function advice({ suggested, calibrated, target }: Judged): Advice {
  const { value, low, high, smallest_that_works: smallest, largest_unbroken: unbroken } = suggested;
  if (smallest === undefined || unbroken === undefined) return older(calibrated.strength);
  const holds =
    unbroken === null ? "The smallest strength already breaks the text." : `The text is unbroken up to ${shown(unbroken)}.`;
  if (target === null) return { said: `${holds} Give words to find the strength at which they come.`, strength: unbroken };
  if (value !== null && low !== null && high !== null) {
    const range = low === high ? "" : ` from ${shown(low)} to ${shown(high)}`;
    return { said: `It works and leaves the text unbroken${range}, at the least at ${shown(value)}.`, strength: value };
  }
  if (smallest !== null) return { said: `It works from ${shown(smallest)}, where the text is broken. ${holds}`, strength: smallest };
  return { said: `It works at no strength that was measured. ${holds}`, strength: null };
}

function older(strength: number | null): Advice {
  const said = "This result is of an earlier version, which did not say what works.";
  return strength === null ? { said, strength } : { said: `${said} KL is 1 nat at ${shown(strength)}.`, strength };
}

function shown(strength: number): string {
  return decimal(strength, 1);
}

/** The words of a field, which commas separate. */
export function wordsIn(text: string): string[] {
  return [...new Set(text.split(",").map((word) => word.trim()))].filter((word) => word !== "");
}

export interface Line {
  name: string;
  /** The places from left to right, each with its value; a value that is not known is null. */
  points: readonly (readonly [number, number | null])[];
}

export interface Scale {
  x: readonly [number, number];
  y: readonly [number, number];
}

/** The span of the places and of the values of lines. With `level` the span of the values has that value too. */
export function scaleOf(lines: readonly Line[], level: number | null): Scale {
  const points = lines.flatMap(({ points }) => [...points]);
  const places = points.map(([place]) => place);
  const values = points.flatMap(([, value]) => (value === null ? [] : [value]));
  if (level !== null) values.push(level);
  return { x: spanOf(places), y: spanOf(values) };
}

function spanOf(values: readonly number[]): readonly [number, number] {
  if (values.length === 0) return [0, 1];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return least === most ? [least, least + 1] : [least, most];
}

/** A place and a value as the part of the way from the left and from the top. */
export function at({ x, y }: Scale, place: number, value: number): readonly [number, number] {
  return [(place - x[0]) / (x[1] - x[0]), 1 - (value - y[0]) / (y[1] - y[0])];
}

export interface EffectPlace {
  sae: string;
  layer: number;
  index: number;
}

/** The feature that was measured; null for a lever that is none, or whose SAE and layer were not named. */
export function featureOf(lever: Record<string, unknown>): EffectPlace | null {
  const { feature } = lever;
  if (typeof feature !== "object" || feature === null) return null;
  const { sae_id, layer, index } = feature as Record<string, unknown>;
  const isWhole = typeof sae_id === "string" && typeof layer === "number" && typeof index === "number";
  return isWhole ? { sae: sae_id, layer, index } : null;
}

/** A lever in words. */
export function leverSaid(lever: Record<string, unknown>): string {
  const place = featureOf(lever);
  if (place !== null) return `feature ${place.layer}:${place.index} of ${place.sae}`;
  if (typeof lever.vector === "string") return `vector ${lever.vector}`;
  if (Array.isArray(lever.edits)) return lever.edits.length === 1 ? "one edit" : `${lever.edits.length} edits`;
  const { index } = (lever.feature ?? {}) as { index?: unknown };
  return typeof index === "number" ? `feature ${index}` : "a lever";
}

/** A kept measurement in a line, with the documents of `supported`. */
export function measurementSaid(
  one: {
    lever: Record<string, unknown>;
    model: string;
    strengths: readonly number[];
    suggested: { low: number | null; high: number | null; smallest_that_works?: number | null };
  },
  supported: readonly { name: string }[] = [],
): string {
  const { lever, model, strengths, suggested } = one;
  const ladder = strengths.length === 1 ? `strength ${strengths[0]}` : `${strengths.length} strengths`;
  const works = workingSaid(suggested);
  const evidence = supported.length === 0 ? [] : [`evidence for ${supported.map(({ name }) => name).join(", ")}`];
  return [leverSaid(lever), model, ladder, ...works, ...evidence].join(" · ");
}

function workingSaid({ low, high, smallest_that_works }: { low: number | null; high: number | null; smallest_that_works?: number | null }): string[] {
  // a result of an earlier version does not say what works
  if (smallest_that_works === undefined || low === null || high === null) return [];
  return [low === high ? `works at ${shown(low)}` : `works from ${shown(low)} to ${shown(high)}`];
}
