// The questions and actions of the Steer page and of the Tokens page.
import { queryOptions, type QueryClient } from "@tanstack/react-query";
import { asApiError } from "../rules/errors";
import { listedFor, mayRank, readText } from "../rules/reading";
import { keyOf, type Place } from "../rules/steer";
import { request } from "./client";
import type { Rank } from "./corpora";
import type { Steering } from "./queries";

/** Labels and norms change seldom; an import of labels makes them stale by hand. */
const SELDOM = 5 * 60_000;
const RESULTS = 12;

export function feature(sae_id: string, index: number) {
  return queryOptions({
    queryKey: ["features", sae_id, "one", index] as const,
    queryFn: ({ signal }) => request("get", "/api/saes/{sae_id}/features/{index}", { path: { sae_id, index }, signal }),
    staleTime: SELDOM,
  });
}

/** Features by the words of their labels, by how near their directions are to one feature's, or by both. */
export function search(sae_id: string, query: string, near: number | null) {
  const body = { ...(query === "" ? {} : { query }), ...(near === null ? {} : { feature_idx: near }), limit: RESULTS };
  return queryOptions({
    queryKey: ["features", sae_id, "search", query, near] as const,
    queryFn: ({ signal }) => request("post", "/api/saes/{sae_id}/features/search", { path: { sae_id }, body, signal }),
    staleTime: SELDOM,
    enabled: query !== "" || near !== null,
  });
}

/** How many labels an SAE has. */
export function labelCount(sae_id: string) {
  return queryOptions({
    queryKey: ["features", sae_id, "labels", "count"] as const,
    queryFn: async ({ signal }) =>
      (await request("get", "/api/saes/{sae_id}/labels", { path: { sae_id }, query: { limit: 1 }, signal })).total,
    staleTime: SELDOM,
  });
}

/** The live values of one attached SAE, and of the others beside it. */
export function liveValues({ sae_id, layer }: Place) {
  return queryOptions({
    queryKey: ["steering", keyOf({ sae_id, layer })] as const,
    queryFn: ({ signal }) => request("get", "/api/saes/steering", { query: { sae_id, layer }, signal }),
  });
}

/** Actions on the live values. Each writes the service's answer to the cache. */
export function steeringActions(client: QueryClient, { sae_id, layer }: Place) {
  const place = { sae_id, layer };
  const answered = async (state: Steering) => {
    client.setQueryData(liveValues(place).queryKey, state);
    await client.invalidateQueries({ queryKey: ["steering"] });
  };
  return {
    set: async (index: number, value: number) =>
      answered(await request("post", "/api/saes/steering", { body: { feature_idx: index, value, ...place } })),
    setAll: async (steering: Record<string, number>) =>
      answered(await request("post", "/api/saes/steering/batch", { body: { steering, ...place } })),
    remove: async (index: number) =>
      answered(await request("delete", "/api/saes/steering/{index}", { path: { index }, query: place })),
    enable: async (isOn: boolean) =>
      answered(await request("post", isOn ? "/api/saes/steering/enable" : "/api/saes/steering/disable")),
  };
}

/** The dial of what serves: of the active cluster, or of the one circuit. */
export const dials = {
  cluster: (intensity: number) => request("put", "/api/clusters/active/intensity", { body: { intensity } }),
  circuit: (intensity: number) => request("put", "/api/circuits/active/intensity", { body: { intensity } }),
};

export const activeCircuits = queryOptions({
  queryKey: ["circuits", "active"] as const,
  queryFn: ({ signal }) => request("get", "/api/circuits/active", { signal }),
});

/** A text with the log-probability of each of its tokens, and with an SAE their features, read without steering. */
export function readTokens(model: string | null, place: Place | null, prompt: string, rank: Rank) {
  return queryOptions({
    queryKey: ["reading", model, place === null ? "" : keyOf(place), prompt, rank] as const,
    queryFn: async ({ signal }) => {
      if (model === null) throw new Error("no model");
      const once = (size: number, by: Rank = "value") => scored(model, place, prompt, listedFor(prompt, size), by, signal);
      try {
        return await once(4, mayRank(prompt) ? rank : "value");
      } catch (error) {
        // a text of short tokens, which has more of them than was guessed
        if (asApiError(error).code !== "sae_activations_refused") throw error;
        return once(1);
      }
    },
    enabled: model !== null && prompt !== "",
    staleTime: Infinity,
    gcTime: SELDOM,
    retry: false,
  });
}

async function scored(model: string, place: Place | null, prompt: string, listed: number, rank: Rank, signal: AbortSignal) {
  const features = place === null ? {} : { return_sae_activations: { ...featuresOf(place, listed), rank } };
  const answer = await request("post", "/v1/completions", {
    // a model that is no longer loaded is not loaded for this
    headers: { "X-Service-Load-Policy": "refuse" },
    body: {
      ...{ model, prompt, max_tokens: 1, temperature: 0, logprobs: 0, echo: true },
      ...features,
    },
    signal,
  });
  return { ...readText(answer), listed };
}

function featuresOf({ sae_id, layer }: Place, top_k: number) {
  return { positions: "prompt" as const, top_k, sae_id, layer };
}
