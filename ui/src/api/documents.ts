// Profiles, clusters and circuits: what the service answers about them, and their files.
import { queryOptions, type QueryClient } from "@tanstack/react-query";
import type { Imported } from "../rules/imported";
import { fieldText, indented } from "../rules/document";
import { refusal } from "../rules/errors";
import { differences, fitting, liveAt } from "../rules/values";
import { described, request, send, type Data } from "./client";
import { attachments, steering, unlessLive } from "./queries";

export type Profile = Data<"/api/profiles">["profiles"][number];
export type Cluster = Data<"/api/clusters">["clusters"][number];
export type Circuit = Data<"/api/circuits">["circuits"][number];
export type CircuitDetail = Data<"/api/circuits/{circuit_id}">;
export type Claim = Data<"/api/circuits/claims">[number];

/** The most profiles, clusters or circuits that the service answers at once. */
const PAGE = 200;

/** The first page of a list, and the rows of all pages. */
export async function everyPage<Page extends { total: number }, Row>(
  read: (query: { limit: number; offset: number }) => Promise<Page>,
  rowsOf: (page: Page) => readonly Row[],
): Promise<{ first: Page; rows: Row[] }> {
  const first = await read({ limit: PAGE, offset: 0 });
  const rows = [...rowsOf(first)];
  while (rows.length < first.total) {
    const next = rowsOf(await read({ limit: PAGE, offset: rows.length }));
    // rows were deleted meanwhile
    if (next.length === 0) break;
    rows.push(...next);
  }
  return { first, rows };
}

export const profiles = queryOptions({
  queryKey: ["profiles"] as const,
  queryFn: async ({ signal }) => {
    const { first, rows } = await everyPage(
      (query) => request("get", "/api/profiles", { signal, query }),
      (page) => page.profiles,
    );
    return { ...first, profiles: rows };
  },
  refetchInterval: unlessLive,
});

export const clusters = queryOptions({
  queryKey: ["clusters"] as const,
  queryFn: async ({ signal }) => {
    const { first, rows } = await everyPage(
      (query) => request("get", "/api/clusters", { signal, query }),
      (page) => page.clusters,
    );
    return { ...first, clusters: rows };
  },
  refetchInterval: unlessLive,
});

export const circuits = queryOptions({
  queryKey: ["circuits", "list"] as const,
  queryFn: async ({ signal }) => {
    const { first, rows } = await everyPage(
      (query) => request("get", "/api/circuits", { signal, query }),
      (page) => page.circuits,
    );
    return { ...first, circuits: rows };
  },
  refetchInterval: unlessLive,
});

export const circuit = (id: string) =>
  queryOptions({
    queryKey: ["circuits", "one", id] as const,
    queryFn: ({ signal }) => request("get", "/api/circuits/{circuit_id}", { signal, path: { circuit_id: id } }),
    refetchInterval: unlessLive,
  });

/** The SAE that a circuit has at a layer; null where none is bound there. */
export function saeAt({ per_sae_warnings }: Circuit | CircuitDetail, layer: number | null): string | null {
  return per_sae_warnings.find((bound) => bound.layer === layer)?.sae_id ?? null;
}

export const claims = queryOptions({
  queryKey: ["claims"] as const,
  queryFn: ({ signal }) => request("get", "/api/circuits/claims", { signal }),
  refetchInterval: unlessLive,
});

/** Labels of some features of an SAE. */
export const labels = (saeId: string | null, features: readonly number[]) =>
  queryOptions({
    queryKey: ["features", "labels", saeId, features.join()] as const,
    queryFn: async ({ signal }) => {
      const page = await request("get", "/api/saes/{sae_id}/labels", {
        signal,
        path: { sae_id: saeId ?? "" },
        query: { features: features.join(), limit: LABELS },
      });
      return new Map(page.labels.map(({ feature_idx, label }) => [feature_idx, label]));
    },
    enabled: saeId !== null && features.length > 0,
    staleTime: 60_000,
  });

/** The most labels that the service answers at once. */
const LABELS = 1000;

// packs have a key of their own: no event of the service changes what the hub has
export const hubPacks = (q: string, baseModel: string) =>
  queryOptions({
    queryKey: ["packs", "search", q, baseModel] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/clusters/hub/search", {
        signal,
        query: { q, ...(baseModel === "" ? {} : { base_model: baseModel }) },
      }),
    staleTime: 300_000,
    retry: false,
  });

export const packDefinitions = (repo: string) =>
  queryOptions({
    queryKey: ["packs", "definitions", repo] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/clusters/hub/{repo_id}/definitions", { signal, path: { repo_id: repo } }),
    staleTime: 300_000,
    retry: false,
  });

/**
 * Saves the intensity of a profile. An active profile is activated again with it, unless somebody changed the live values
 * since the activation: then they stay.
 */
export async function dialProfile(client: QueryClient, profile_id: string, intensity: number) {
  const path = { profile_id };
  const [profile, attached, live] = await Promise.all([
    request("get", "/api/profiles/{profile_id}", { path }),
    client.fetchQuery({ ...attachments, staleTime: 0 }),
    client.fetchQuery({ ...steering, staleTime: 0 }),
  ]);
  const sae = fitting(attached.entries, profile.sae_id, profile.layer);
  const isChanged =
    sae === null ||
    differences(profile.steering, profile.intensity, liveAt(live, attached.entries, sae)).length > 0;
  await request("patch", "/api/profiles/{profile_id}", { path, body: { intensity } });
  if (!profile.is_active || isChanged) return { warnings: [], steers: false };
  const { warnings } = await request("post", "/api/profiles/{profile_id}/activate", { path });
  return { warnings, steers: true };
}

// ------------------------------------------------------------------ files

export async function importProfile(file: File): Promise<Imported[]> {
  const text = await file.text();
  const { id, name, warnings } = await request("post", "/api/profiles/import", { text });
  return [{ id, name, warnings, error: null }];
}

export async function importClusters(file: File): Promise<Imported[]> {
  const text = await file.text();
  const { results } = await request("post", "/api/clusters/import", { text });
  return results.map(({ profile_id, name, warnings, error }) => ({
    id: profile_id ?? null,
    name,
    warnings: warnings ?? [],
    error: error ?? null,
  }));
}

export async function importCircuit(file: File): Promise<Imported[]> {
  const text = await file.text();
  const { id, name, warnings } = await request("post", "/api/circuits/import", { text });
  return [{ id, name, warnings, error: null }];
}

/** The document of an export as it was imported, without a change of its numbers. */
export async function exported(sent: ReturnType<typeof described>): Promise<string> {
  const response = await send(sent);
  const answer = await response.text();
  const document = fieldText(answer, "data");
  if (document === null || document === "null") throw refusal(JSON.parse(answer), response.status, response.headers);
  return indented(document);
}

export function exportProfile(id: string): Promise<string> {
  return exported(described("get", "/api/profiles/{profile_id}/export", { path: { profile_id: id } }));
}

export function exportCluster(id: string): Promise<string> {
  return exported(described("get", "/api/clusters/{cluster_id}/export", { path: { cluster_id: id } }));
}

export function exportCircuit(id: string): Promise<string> {
  return exported(described("get", "/api/circuits/{circuit_id}/export", { path: { circuit_id: id } }));
}
