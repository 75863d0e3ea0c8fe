// What a person writes into the form that configures monitoring.
import { indexIn } from "./places";

export const TOP_K = { least: 1, most: 1000 };

/** Feature indices such as `90, 332 17`, each once; null where something else stands there, or nothing. */
export function named(written: string): number[] | null {
  const parts = written.split(/[\s,;]+/).filter((part) => part !== "");
  const numbers = parts.map(indexIn).filter((index) => index !== null);
  return parts.length > 0 && numbers.length === parts.length ? [...new Set(numbers)] : null;
}

/** A whole number in its bounds; null where something else stands there. */
export function bounded(written: string, { least, most }: { least: number; most: number }): number | null {
  const value = Number(written);
  return written.trim() !== "" && Number.isInteger(value) && value >= least && value <= most ? value : null;
}
