// What a lever does at a ladder of strengths, measured by a job.
import { described, request, type Body } from "./client";
import type { Job } from "./jobs";

export type EffectsBody = Body<"/api/effects">;
export type Effects = Extract<NonNullable<Job["result"]>, { calibrated: unknown }>;
export type EffectRow = Effects["rows"][number];

/** Begin the measurement. It goes on as a job, also where the page is left. */
export async function measure(body: EffectsBody): Promise<string> {
  return (await request("post", "/api/effects", { body })).job.id;
}

export function describedEffects(body: EffectsBody) {
  return described("post", "/api/effects", { body, query: { wait: true } });
}

/** The result of a measurement; null for that of another kind of job. */
export function effectsOf({ result }: Job): Effects | null {
  return result !== null && "calibrated" in result ? result : null;
}
