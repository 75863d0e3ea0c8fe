// The links to a feature, to the Steer page with a feature, and to the Live page with pinned features.
import type { Field } from "./link";

export interface FeaturePlace {
  sae: string;
  /** Null where the SAE is not attached. */
  layer: number | null;
  index: number;
}

/** The path of a feature's own view: `/features/sae_1/3/90`. */
export function featurePath({ sae, layer, index }: FeaturePlace): string {
  return `/features/${encodeURIComponent(sae)}/${layer ?? "-"}/${index}`;
}

/** The feature in the rest of such a path, `sae_1/3/90`; null where the rest names none. */
export function featureIn(rest: string): FeaturePlace | null {
  const match = /^([^/]+)\/(\d{1,5}|-)\/(\d{1,9})$/.exec(rest);
  const [, sae, layer, index] = match ?? [];
  if (sae === undefined || layer === undefined || index === undefined) return null;
  return { sae, layer: layer === "-" ? null : Number(layer), index: Number(index) };
}

/** The layer and the index of a feature as they are written: `3:90`, or `#90` without a layer. */
export function placeName(layer: number | null, index: number): string {
  return layer === null ? `#${index}` : `${layer}:${index}`;
}

/** The index that a person wrote to find a feature: `90`, `#90` or `3:90`; null for other words. */
export function indexIn(words: string): number | null {
  const index = /^(?:#|\d{1,5}:)?(\d{1,9})$/.exec(words.trim())?.[1];
  return index === undefined ? null : Number(index);
}

/** The path of the Live page with features pinned. */
export function livePath(pins: readonly number[]): string {
  return `/live?pins=${pins.join(",")}`;
}

/** Whole numbers in a link, each once: `90,332`. */
export function indices(most: number): Field<readonly number[]> {
  return {
    fallback: [],
    expected: `at most ${most} feature indices, separated by commas`,
    read(written) {
      const numbers = written.split(",").map((part) => indexIn(part));
      const whole = [...new Set(numbers.filter((index) => index !== null))];
      return numbers.every((index) => index !== null) && whole.length <= most ? whole : undefined;
    },
    write: (value) => value.join(","),
  };
}

/** The path of the Steer page with a feature, at its typical strength where that is known. */
export function steerPath(sae: string, layer: number, index: number, typical: number | null): string {
  const key = `${sae}@${layer}`;
  const features = JSON.stringify([[index, typical === null ? 10 : Math.round(typical * 2) / 2, 1, key]]);
  return `/steer?${new URLSearchParams({ f: features, sae: key })}`;
}
