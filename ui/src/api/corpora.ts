// Corpora: what was read of many texts for the features of the attached SAEs.
import { queryOptions, useQuery } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import { attachments, BUSY_POLL, POLL, watched } from "./queries";

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

/** Whether a corpus was read of the SAE as it is attached at this layer, so that its features can be ranked by it. */
export function useCanRank(place: { sae_id: string; layer: number } | null): boolean {
  // no event tells of corpora
  const entries = useQuery(watched(attachments)).data?.entries ?? [];
  return entries.some(
    ({ sae_id, layer, has_corpus }) => sae_id === place?.sae_id && layer === place.layer && has_corpus === true,
  );
}
