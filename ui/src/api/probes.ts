// Probes: linear classifiers of a model's activations, and their files.
import { queryOptions } from "@tanstack/react-query";
import type { Imported } from "../rules/imported";
import { described, request, type Data } from "./client";
import { everyPage } from "./documents";
import { POLL } from "./queries";
import { formOf, type Reading } from "./vectors";

export type Probe = Data<"/api/probes">["probes"][number];

export const probes = queryOptions({
  queryKey: ["probes"] as const,
  queryFn: async ({ signal }) => {
    const { first, rows } = await everyPage(
      (query) => request("get", "/api/probes", { signal, query }),
      (page) => page.probes,
    );
    return { ...first, probes: rows };
  },
  // no event tells of probes
  refetchInterval: POLL,
});

export async function importProbe(file: File, reading: Reading): Promise<Imported[]> {
  const { id, name, warnings } = await request("post", "/api/probes", { form: formOf(file, reading) });
  return [{ id, name, warnings, error: null }];
}

export function removeProbe(probe_id: string) {
  return request("delete", "/api/probes/{probe_id}", { path: { probe_id } });
}

/** A chat whose answer says what the probe reads of each of its tokens. */
export function reading(probe_id: string) {
  return described("post", "/v1/chat/completions", {
    body: {
      model: "MODEL",
      messages: [{ role: "user", content: "Tell me a story." }],
      return_readings: [probe_id],
    },
  });
}
