// Recorded answers, which can be made again.
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { described, request, send, type Data } from "./client";
import { POLL } from "./queries";

export type RunSummary = Data<"/api/runs">["runs"][number];
export type Run = Data<"/api/runs/{request_id}">;
export type Replayed = Data<"/api/runs/{request_id}/replay", "post">;

/** The most records that the service lists. */
export const RUNS_MAXIMUM = 1000;

export const runs = (limit: number) =>
  queryOptions({
    queryKey: ["runs", "list", limit] as const,
    queryFn: ({ signal }) => request("get", "/api/runs", { signal, query: { limit } }),
    refetchInterval: POLL,
    placeholderData: keepPreviousData,
  });

/** One record whole. It never changes. */
export const run = (id: string) =>
  queryOptions({
    queryKey: ["runs", "one", id] as const,
    queryFn: ({ signal }) => request("get", "/api/runs/{request_id}", { signal, path: { request_id: id } }),
    staleTime: Infinity,
  });

/** The request that makes a recorded answer again. */
export function replaying(request_id: string) {
  return described("post", "/api/runs/{request_id}/replay", { path: { request_id } });
}

export function replay(request_id: string) {
  return request("post", "/api/runs/{request_id}/replay", { path: { request_id } });
}

export function removeRun(request_id: string) {
  return request("delete", "/api/runs/{request_id}", { path: { request_id } });
}

/** All records, a line of JSON for each. */
export async function exportRuns(): Promise<Blob> {
  return (await send(described("get", "/api/runs/export"))).blob();
}

/** Store the records of an export. */
export async function importRuns(file: File): Promise<{ imported: number; known: number }> {
  const sent = described("post", "/api/runs/import", { text: await file.text(), headers: LINES });
  const { data } = (await (await send(sent)).json()) as { data: { imported: number; known: number } };
  return data;
}

const LINES = { "Content-Type": "application/x-ndjson" };
