// What a lever does at a ladder of strengths, measured by a job.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import { everyPage } from "./documents";
import type { Job } from "./jobs";
import { POLL } from "./queries";

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

export type KeptEffects = Data<"/api/effects">["effects"][number];

/** The kept results without their figures, the newest first. */
export const keptEffects = queryOptions({
  queryKey: ["effects", "list"] as const,
  queryFn: async ({ signal }) =>
    (await everyPage((query) => request("get", "/api/effects", { signal, query }), ({ effects }) => effects)).rows,
  // no event tells of kept results
  refetchInterval: POLL,
});

/** The kept results that are evidence for a profile, a cluster or a circuit, the newest first. */
export const evidenceFor = (document: string) =>
  queryOptions({
    queryKey: ["effects", "evidence", document] as const,
    queryFn: async ({ signal }) =>
      (
        await everyPage(
          (query) => request("get", "/api/effects", { signal, query: { ...query, evidence_for: document } }),
          ({ effects }) => effects,
        )
      ).rows,
    refetchInterval: POLL,
  });

/** A kept result with its figures. */
export const keptEffect = (effect_id: string) =>
  queryOptions({
    queryKey: ["effects", "one", effect_id] as const,
    queryFn: ({ signal }) => request("get", "/api/effects/{effect_id}", { signal, path: { effect_id } }),
    staleTime: POLL,
    retry: false,
  });

export function removeEffects(effect_id: string) {
  return request("delete", "/api/effects/{effect_id}", { path: { effect_id } });
}

/** Make a kept result evidence for a profile, a cluster or a circuit, or no evidence any more. */
export function setEvidence(effect_id: string, document_id: string, isEvidence: boolean) {
  const path = { effect_id, document_id };
  return isEvidence
    ? request("put", "/api/effects/{effect_id}/evidence/{document_id}", { path })
    : request("delete", "/api/effects/{effect_id}/evidence/{document_id}", { path });
}
