// The live interventions: edits of the requests of everybody.
import { queryOptions } from "@tanstack/react-query";
import type { Interventions } from "../rules/interventions";
import { request, type Body } from "./client";

export const liveInterventions = queryOptions({
  // what changes the live steering makes them stale too
  queryKey: ["steering", "interventions"] as const,
  queryFn: ({ signal }) => request("get", "/api/interventions", { signal }),
});

/** Let edits act on the requests of everybody, beside the live values; none end the live interventions. */
export async function intervene(wanted: Interventions): Promise<void> {
  if (wanted.edits.length === 0) await request("delete", "/api/interventions");
  else await request("put", "/api/interventions", { body: wanted as Body<"/api/interventions", "put"> });
}
