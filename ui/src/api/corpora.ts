// Corpora: what was read of many texts for the features of the attached SAEs.
import { queryOptions } from "@tanstack/react-query";
import { request, type Body, type Data } from "./client";
import { POLL } from "./queries";

export type Corpora = Data<"/api/corpora">;
export type Rank = NonNullable<Body<"/api/monitoring/statistics/top">["rank"]>;

export const corpora = queryOptions({
  queryKey: ["corpora"] as const,
  queryFn: ({ signal }) => request("get", "/api/corpora", { signal }),
  staleTime: POLL,
});

/** Whether a corpus was read of this SAE at this layer of the model, so that its features can be ranked by it. */
export function isRanked(
  all: Corpora | undefined,
  model: string | undefined,
  place: { sae_id: string; layer: number } | null,
): boolean {
  return (
    all?.corpora.some(
      (one) =>
        one.state === "done" &&
        one.model === model &&
        one.saes.some(({ sae_id, layer }) => sae_id === place?.sae_id && layer === place.layer),
    ) ?? false
  );
}
