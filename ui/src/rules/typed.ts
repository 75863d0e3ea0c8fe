// What a person types on the Steer page: features with their values, and intensities.
import { LIMIT } from "./strength";

export const INTENSITIES_MAXIMUM = 16;

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

export function isIntensities(value: unknown): value is readonly number[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.length <= INTENSITIES_MAXIMUM &&
    new Set(value).size === value.length &&
    value.every((one) => typeof one === "number" && one >= 0 && one <= 2)
  );
}
