// Corpora: what was read of many texts for the features of the attached SAEs.
import { queryOptions, useQuery } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import { BUSY_POLL, models, POLL } from "./queries";

export type Corpus = Data<"/api/corpora">["corpora"][number];
export type CorpusBody = Body<"/api/corpora">;
export type Rank = NonNullable<Body<"/api/monitoring/statistics/top">["rank"]>;

export const corpora = queryOptions({
  queryKey: ["corpora"] as const,
  queryFn: ({ signal }) => request("get", "/api/corpora", { signal }),
  refetchInterval: ({ state }) => (state.data?.corpora.some((one) => one.state === "reading") === true ? BUSY_POLL : POLL),
});

/** Begin to read a corpus. It goes on as a job, also where the page is left. */
export async function readCorpus(body: CorpusBody): Promise<string> {
  return (await request("post", "/api/corpora", { body })).job.id;
}

/** The same request, for people who want to copy it. */
export function describedCorpus(body: CorpusBody) {
  return described("post", "/api/corpora", { body });
}

export function removeCorpus(corpus_id: string) {
  return request("delete", "/api/corpora/{corpus_id}", { path: { corpus_id } });
}

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
