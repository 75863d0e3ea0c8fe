// Corpora: what was read of many texts for the features of the attached SAEs.
import { queryOptions, useQuery } from "@tanstack/react-query";
import { request, type Body, type Data } from "./client";
import { models, POLL } from "./queries";

export type Corpora = Data<"/api/corpora">;
export type Rank = NonNullable<Body<"/api/monitoring/statistics/top">["rank"]>;

export const corpora = queryOptions({
  queryKey: ["corpora"] as const,
  queryFn: ({ signal }) => request("get", "/api/corpora", { signal }),
  staleTime: POLL,
});

/** Whether a corpus was read of the SAE at this layer of the loaded model, so that its features can be ranked by it. */
export function useCanRank(place: { sae_id: string; layer: number } | null): boolean {
  const loaded = useQuery(models).data;
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id)?.name;
  const all = useQuery(corpora).data?.corpora ?? [];
  return all.some(
    (one) =>
      one.state === "done" &&
      one.model === model &&
      one.saes.some(({ sae_id, layer }) => sae_id === place?.sae_id && layer === place.layer),
  );
}
