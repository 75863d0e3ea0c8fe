// The values of a profile, a cluster or a circuit at an intensity, and how the live values differ from them.

/** The bound of a live value. */
export const BOUND = 200;
/** Values that differ by less are equal: products of decimal fractions have noise. */
const NOISE = 1e-6;

export type Values = Readonly<Record<string, number>>;

export interface Difference {
  index: number;
  /** The value of the document at its intensity; null for a feature that the document does not have. */
  saved: number | null;
  /** The live value; null for a feature that does not steer. */
  live: number | null;
}

/** A value at an intensity, held within the bound of live values. */
export function atIntensity(value: number, intensity: number): number {
  const product = Math.min(BOUND, Math.max(-BOUND, value * intensity));
  return Number(product.toPrecision(12)) + 0;
}

/** Where the live values of an SAE differ from values at an intensity, by feature. A value of 0 counts as none. */
export function differences(values: Values, intensity: number, live: Values): Difference[] {
  const indices = [...new Set([...Object.keys(values), ...Object.keys(live)].map(Number))].sort((a, b) => a - b);
  return indices
    .map((index) => {
      const value = values[index];
      return {
        index,
        saved: value === undefined ? null : atIntensity(value, intensity),
        live: live[index] ?? null,
      };
    })
    .filter(({ saved, live: now }) => Math.abs((saved ?? 0) - (now ?? 0)) > NOISE);
}

interface Attached {
  sae_id: string;
  layer: number;
}

/** The first attached SAE that an id and a layer fit. Null fits each. An id of another server fits none, so the layer
 * alone decides then. */
export function fitting<T extends Attached>(attached: readonly T[], saeId: string | null, layer: number | null): T | null {
  const atLayer = attached.filter((one) => layer === null || one.layer === layer);
  return atLayer.find((one) => one.sae_id === saeId) ?? atLayer[0] ?? null;
}

/** How many values steer that no circuit claims: those of a profile, and those that were set by hand. */
export function unclaimed(
  steering: { values: Values; others?: Readonly<Record<string, Values>> | undefined },
  attached: readonly Attached[],
  claims: readonly { layer: number; steering_keys: readonly number[] }[],
): number {
  return attached.reduce((sum, sae) => {
    const claimed = new Set(claims.filter(({ layer }) => layer === sae.layer).flatMap((claim) => claim.steering_keys));
    const values = Object.entries(liveAt(steering, attached, sae));
    return sum + values.filter(([index, value]) => value !== 0 && !claimed.has(Number(index))).length;
  }, 0);
}

/** The live values of an attached SAE: those of the first one stand for themselves, those of others by their place. */
export function liveAt(
  steering: { values: Values; others?: Readonly<Record<string, Values>> | undefined },
  attached: readonly Attached[],
  sae: Attached,
): Values {
  const [first] = attached;
  const isFirst = first?.sae_id === sae.sae_id && first.layer === sae.layer;
  return isFirst ? steering.values : (steering.others?.[`${sae.sae_id}@${sae.layer}`] ?? {});
}
