// Which layers the logit lens reads.

/** Every layer, or every second, fourth or eighth one: the answer of a large model and a long text is bounded. */
export const STEPS = [1, 2, 4, 8] as const;

/** Each layer that is a step from the last one; null for all. */
export function everyNth(layers: number | null, step: number): number[] | null {
  if (step === 1 || layers === null) return null;
  const chosen: number[] = [];
  for (let layer = layers - 1; layer >= 0; layer -= step) chosen.unshift(layer);
  return chosen;
}

/** Of the chosen layers those that a trained lens maps, and the last one; null for all that it maps. */
export function mapped(chosen: readonly number[] | null, maps: readonly number[], layers: number | null): number[] | null {
  return chosen === null ? null : chosen.filter((layer) => maps.includes(layer) || layer + 1 === layers);
}
