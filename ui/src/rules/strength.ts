// The scale of a slider for steering strengths. Small strengths get most of the travel, and 0 is in the middle.
//
// A slider has positions from -1000 to 1000. The strength of a position p in [-1, 1] is
// sign(p) * maximum * (exp(CURVE * |p|) - 1) / (exp(CURVE) - 1), rounded to a step. `position` is its exact inverse:
// strength(position(x)) is x for every x on the steps.

export const POSITIONS = 1000;
export const LIMIT = 200;
const CURVE = 3.2;

/** The strength at a position of the slider, rounded to 0.1 below 10, to 0.5 below 50, and to 1 above. */
export function strength(position: number, maximum = LIMIT): number {
  const part = Math.min(1, Math.abs(position) / POSITIONS);
  const value = (maximum * Math.expm1(CURVE * part)) / Math.expm1(CURVE);
  return Math.sign(position) * Math.min(maximum, rounded(value)) + 0;
}

/** The position of a strength. It is not rounded, so that the slider stands exactly where the number is. */
export function position(value: number, maximum = LIMIT): number {
  const part = Math.min(1, Math.abs(value) / maximum);
  return (Math.sign(value) * POSITIONS * Math.log1p(part * Math.expm1(CURVE))) / CURVE + 0;
}

/** The next strength in a direction, for the arrow keys: one step of the rounding at that place. */
export function next(value: number, direction: 1 | -1, maximum = LIMIT): number {
  const grows = Math.sign(value) === direction || value === 0;
  const size = Math.abs(value);
  const step = stepAt(grows ? size : Math.max(0, size - 1e-9));
  const moved = Number((value + direction * step).toFixed(4));
  return Math.min(maximum, Math.max(-maximum, moved)) + 0;
}

/** The text of a strength with its sign: `+12.5`, `−3`, `0`. */
export function signed(value: number): string {
  if (value === 0) return "0";
  return `${value > 0 ? "+" : "−"}${Number(Math.abs(value).toFixed(4))}`;
}

function stepAt(size: number): number {
  if (size < 10) return 0.1;
  return size < 50 ? 0.5 : 1;
}

function rounded(size: number): number {
  const step = stepAt(size);
  return Number((Math.round(size / step) * step).toFixed(4));
}
