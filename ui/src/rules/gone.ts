// What a restart of the service has taken: what was there before it, and is not there after it.

export interface Known {
  /** The name of the loaded model. */
  model: string | null;
  isLocked: boolean;
  /** `endsAt` is in milliseconds since 1970. */
  lease: { holder: string; endsAt: number } | null;
  saes: readonly string[];
  /** The places of the live values, such as `sae_a@3:90`. */
  values: readonly string[];
}
export const NOTHING: Known = { model: null, isLocked: false, lease: null, saes: [], values: [] };

interface Answers {
  models: { loaded_model_id: number | null; models: readonly { id: number; name: string; locked: boolean }[] };
  attachments: { entries: readonly { sae_id: string; layer: number }[] };
  steering: Steering | undefined;
  lease: { holder: string; expires_at: string } | null | undefined;
}
interface Steering {
  values: Readonly<Record<string, number>>;
  others?: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

export function known({ models, attachments, steering, lease }: Answers): Known {
  const loaded = models.models.find(({ id }) => id === models.loaded_model_id);
  const [first, ...others] = attachments.entries;
  const maps = [
    ...(first === undefined ? [] : [[`${first.sae_id}@${first.layer}`, steering?.values ?? {}] as const]),
    ...(others.length === 0 ? [] : Object.entries(steering?.others ?? {})),
  ];
  return {
    model: loaded?.name ?? null,
    isLocked: loaded?.locked ?? false,
    lease: lease ? { holder: lease.holder, endsAt: Date.parse(lease.expires_at) } : null,
    saes: attachments.entries.map(({ sae_id, layer }) => `${sae_id} at layer ${layer}`),
    values: maps.flatMap(([key, values]) =>
      Object.entries(values).flatMap(([index, value]) => (value === 0 ? [] : [`${key}:${index}`])),
    ),
  };
}

/** The part of what was there that is not there after. */
export function missing(before: Known, after: Known): Known {
  return {
    model: before.model === after.model ? null : before.model,
    isLocked: before.isLocked && !after.isLocked,
    lease: before.lease?.holder === after.lease?.holder ? null : before.lease,
    saes: before.saes.filter((sae) => !after.saes.includes(sae)),
    values: before.values.filter((place) => !after.values.includes(place)),
  };
}

/** What is gone, in words; empty where nothing is. */
export function gone(before: Known, after: Known, now: number): string[] {
  const { model, isLocked, lease, saes, values: places } = missing(before, after);
  const values = places.length;
  return [
    model === null ? "" : `the model ${model}`,
    saes.length === 0 ? "" : saes.length === 1 ? `the SAE ${saes[0]}` : `${saes.length} SAEs`,
    values === 0 ? "" : `${values} live ${values === 1 ? "value" : "values"}`,
    isLocked ? "the lock of the model" : "",
    lease !== null && lease.endsAt > now ? `the lease of ${lease.holder}` : "",
  ].filter((words) => words !== "");
}
