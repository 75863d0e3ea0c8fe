// Features of SAEs: their figures, labels and neighbours.
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { described, request, type Data } from "./client";
import type { Job } from "./jobs";
import { POLL } from "./queries";

export type Feature = Data<"/api/saes/{sae_id}/features/{index}">;

/** An SAE that is not attached is read from its file for each answer, so only an attached one is asked repeatedly. */
export const feature = (sae_id: string, index: number) =>
  queryOptions({
    queryKey: ["features", sae_id, "one", index] as const,
    queryFn: ({ signal }) => request("get", "/api/saes/{sae_id}/features/{index}", { signal, path: { sae_id, index } }),
    refetchInterval: ({ state }) => (typeof state.data?.layer === "number" ? POLL : false),
  });

/** The features whose decoder directions are nearest to that of a feature. */
export const nearest = (sae_id: string, feature_idx: number, limit: number) =>
  queryOptions({
    queryKey: ["features", sae_id, "nearest", feature_idx, limit] as const,
    queryFn: ({ signal }) =>
      request("post", "/api/saes/{sae_id}/features/search", {
        signal,
        path: { sae_id },
        body: { feature_idx, limit, examples: true },
      }),
    staleTime: POLL,
  });

/** How features are searched that need no labels. */
export type Way = "promotes" | "examples" | "text";

/** The features that promote the tokens of a word, that peak at it in a corpus, or that fire on a text; or the job that first
 * computes the promoted tokens. Each has its strongest example. */
export const found = (sae_id: string, by: Way, words: string) =>
  queryOptions({
    queryKey: ["features", sae_id, by, words] as const,
    queryFn: async ({ signal }): Promise<{ job: Job } | Found> =>
      request("post", "/api/saes/{sae_id}/features/search", {
        signal,
        path: { sae_id },
        body: { ...(by === "text" ? { text: words } : { query: words }), by, examples: true, limit: PAGE },
      }),
    retry: false,
    staleTime: Infinity,
  });

type Found = Data<"/api/saes/{sae_id}/features/search", "post">;

const PAGE = 25;

/** The labelled features in the order of their indices, page by page; with words, those whose labels have them all. */
export const labelled = (sae_id: string, query: string) =>
  infiniteQueryOptions({
    queryKey: ["features", sae_id, "labels", "pages", query] as const,
    queryFn: ({ signal, pageParam }) =>
      request("get", "/api/saes/{sae_id}/labels", {
        signal,
        path: { sae_id },
        query: { limit: PAGE, offset: pageParam, ...(query === "" ? {} : { query }) },
      }),
    initialPageParam: 0,
    getNextPageParam: ({ offset, labels, matched }) =>
      offset + labels.length < matched ? offset + labels.length : undefined,
    placeholderData: keepPreviousData,
  });

/** The request that gives a feature its label. */
export function labelling(sae_id: string, index: number, label: string) {
  return described("post", "/api/saes/{sae_id}/labels", { path: { sae_id }, body: { [index]: label } });
}

export function saveLabel(sae_id: string, index: number, label: string) {
  return request("post", "/api/saes/{sae_id}/labels", { path: { sae_id }, body: { [index]: label } });
}

export function removeLabel(sae_id: string, index: number) {
  return request("delete", "/api/saes/{sae_id}/labels/{index}", { path: { sae_id, index } });
}
