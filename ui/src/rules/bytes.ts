// Sizes of memory and files as text. What was not measured is a dash.

export const DASH = "–";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;
export type Unit = (typeof UNITS)[number];

/** The largest unit in which a size is at least 1. A row of sizes uses one unit, so that its digits do not jump. */
export function unitFor(bytes: number): Unit {
  const power = bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10);
  return UNITS[Math.min(power, UNITS.length - 1)] ?? "B";
}

/** A size in a unit, by default the largest that fits: `1.5 GiB`. */
export function bytes(size: number | null | undefined, unit?: Unit): string {
  if (!isMeasured(size)) return DASH;
  const shown = unit ?? unitFor(size);
  const value = size / 1024 ** UNITS.indexOf(shown);
  return `${value.toFixed(shown === "B" || value >= 100 ? 0 : 1)} ${shown}`;
}

/** A size that the service gives in MiB. */
export function mebibytes(size: number | null | undefined): string {
  return isMeasured(size) ? bytes(size * 1024 ** 2, size < 1024 ? "MiB" : undefined) : DASH;
}

/** A number with separators between thousands, or a dash. */
export function count(value: number | null | undefined): string {
  return isMeasured(value) ? value.toLocaleString("en-US") : DASH;
}

/** A number with a given number of decimals, or a dash. */
export function decimal(value: number | null | undefined, decimals = 2): string {
  return isMeasured(value) ? value.toFixed(decimals) : DASH;
}

/** A part of a whole as percent, or a dash. */
export function percent(part: number | null | undefined, decimals = 0): string {
  return isMeasured(part) ? `${(part * 100).toFixed(decimals)} %` : DASH;
}

export function isMeasured(value: number | null | undefined): value is number {
  return typeof value === "number" && Number.isFinite(value);
}
