// Monitoring: its state, its records, its statistics.
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import type { Rank } from "./corpora";
import { POLL, unlessLive } from "./queries";
import type { components } from "./types.gen";

export type Monitoring = Data<"/api/monitoring">;
export type Records = Data<"/api/monitoring/history">;
export type Contexts = Data<"/api/monitoring/contexts">;
export type Configuration = Body<"/api/monitoring/configure">;
/** A live event: the largest activations at the last token of an answer. */
export type Activations = components["schemas"]["MonitoringActivation"];
export type Metric = Data<"/api/monitoring/statistics/top", "post">["metric"];

export const monitoring = queryOptions({
  queryKey: ["monitoring", "state"] as const,
  queryFn: ({ signal }) => request("get", "/api/monitoring", { signal }),
  refetchInterval: unlessLive,
});

/** The newest records with their largest or highest ranked activations, and with the values of the named features. */
export const readings = (features: readonly number[], limit: number, rank: Rank) =>
  queryOptions({
    queryKey: ["readings", features, limit, rank] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/monitoring/history", {
        signal,
        query: { limit, rank, ...(features.length === 0 ? {} : { features: features.join(",") }) },
      }),
    refetchInterval: unlessLive,
    placeholderData: keepPreviousData,
  });

/** The values of one feature in all kept records. */
export const observed = (index: number) =>
  queryOptions({
    queryKey: ["monitoring", "observed", index] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/monitoring/history", { signal, query: { limit: 1000, features: String(index) } }),
    refetchInterval: POLL,
  });

/** The texts in which a feature was strongest, where the operator keeps them. */
export const contexts = (feature: number, limit: number) =>
  queryOptions({
    queryKey: ["monitoring", "contexts", feature, limit] as const,
    queryFn: ({ signal }) => request("get", "/api/monitoring/contexts", { signal, query: { feature, limit } }),
    refetchInterval: POLL,
  });

/** The features with the largest figures since the statistics began. */
export const top = (metric: Metric, k: number, rank: Rank) =>
  queryOptions({
    queryKey: ["monitoring", "top", metric, k, rank] as const,
    queryFn: ({ signal }) => request("post", "/api/monitoring/statistics/top", { signal, body: { metric, k, rank, examples: true } }),
    refetchInterval: POLL,
    placeholderData: keepPreviousData,
  });

/** The request that replaces the configuration of monitoring. */
export function configuring(body: Configuration) {
  return described("post", "/api/monitoring/configure", { body });
}

export function configure(body: Configuration) {
  return request("post", "/api/monitoring/configure", { body });
}

export function enable(enabled: boolean) {
  return request("post", "/api/monitoring/enable", { body: { enabled } });
}
