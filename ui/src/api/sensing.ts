// Sensing: what is armed, and the recorded firings of clusters and of edges of circuits.
import { queryOptions } from "@tanstack/react-query";
import { ofCluster, ofEdge, type Firing } from "../rules/firing";
import { request, type Data } from "./client";
import { unlessLive } from "./queries";

export type ClusterSensing = Data<"/api/sensing/status">;
export type CircuitSensing = Data<"/api/circuit-sensing/status">;
export type Kind = Firing["kind"];

export const clusterSensing = queryOptions({
  queryKey: ["sensing", "clusters", "status"] as const,
  queryFn: ({ signal }) => request("get", "/api/sensing/status", { signal }),
  refetchInterval: unlessLive,
});

export const circuitSensing = queryOptions({
  queryKey: ["sensing", "circuits", "status"] as const,
  queryFn: ({ signal }) => request("get", "/api/circuit-sensing/status", { signal }),
  refetchInterval: unlessLive,
});

/** The newest firings of the edges of a circuit. */
export const edgeFirings = (id: string) =>
  queryOptions({
    queryKey: ["sensing", "circuit", "edges", id] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/circuit-sensing/events", { signal, query: { circuit_id: id, limit: 200 } }),
  });

/** The newest firings of a kind, of one cluster or circuit or of all. */
export const firings = (kind: Kind, of: string, limit: number) =>
  queryOptions({
    queryKey: ["sensing", kind, "events", of, limit] as const,
    queryFn: async ({ signal }): Promise<{ events: Firing[]; total: number }> => {
      if (kind === "cluster") {
        const query = { limit, ...(of === "" ? {} : { profile_id: of }) };
        const { events, total } = await request("get", "/api/sensing/events", { signal, query });
        return { events: events.map(ofCluster), total };
      }
      const query = { limit, ...(of === "" ? {} : { circuit_id: of }) };
      const { events, total } = await request("get", "/api/circuit-sensing/events", { signal, query });
      return { events: events.map(ofEdge), total };
    },
  });

/** One firing with the text around it. */
export const firing = (kind: Kind, id: number) =>
  queryOptions({
    queryKey: ["sensing", kind, "event", id] as const,
    queryFn: async ({ signal }): Promise<Firing> =>
      kind === "cluster"
        ? ofCluster(await request("get", "/api/sensing/events/{event_id}", { signal, path: { event_id: id } }))
        : ofEdge(await request("get", "/api/circuit-sensing/events/{event_id}", { signal, path: { event_id: id } })),
    retry: false,
  });

/** Whether an operator wants a cluster to be sensed. */
export function switchSensing(profile_id: string, isOn: boolean) {
  const path = { profile_id };
  return isOn
    ? request("post", "/api/sensing/{profile_id}/enable", { path })
    : request("post", "/api/sensing/{profile_id}/disable", { path });
}
