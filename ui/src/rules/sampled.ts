// Which features are shown first of an SAE: some that are drawn, and of them those whose examples say most.

/** The features that are asked for, and those of them that are shown. */
export const DRAWN = 16;
export const SHOWN = 8;
/** A feature that fires at fewer tokens may have fired by chance. */
const LEAST_TOKENS = 10;

/** Different features below `size`, the same ones for the same seed. */
export function drawn(size: number, seed: number): number[] {
  const found = new Set<number>();
  let state = (seed + 1) >>> 0;
  while (found.size < Math.min(DRAWN, size)) {
    // mulberry32
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    found.add(((mixed ^ (mixed >>> 14)) >>> 0) % size);
  }
  return [...found];
}

interface Over {
  tokens: number;
  density: number;
  examples: readonly { is_strongest: boolean }[];
}

/** What the largest corpus says of a feature; undefined without one. */
export function largestOf<T extends Over>(corpora: readonly T[]): T | undefined {
  return corpora.reduce<T | undefined>((best, one) => (best === undefined || one.tokens > best.tokens ? one : best), undefined);
}

/** Those that have an example, the rarest first: a feature that fires everywhere says little by its examples. */
export function telling<T extends { corpora: readonly Over[] }>(features: readonly T[]): T[] {
  const rated = features.flatMap((feature) => {
    const over = largestOf(feature.corpora);
    if (over === undefined || over.examples.length === 0) return [];
    return [{ feature, isRare: over.density * over.tokens < LEAST_TOKENS, density: over.density }];
  });
  rated.sort((one, other) => Number(one.isRare) - Number(other.isRare) || one.density - other.density);
  return rated.slice(0, SHOWN).map(({ feature }) => feature);
}
