// Captures: the values of sites of the model over many texts, in files.
import { queryOptions } from "@tanstack/react-query";
import { described, request, send } from "./client";
import { BUSY_POLL, POLL } from "./queries";
import type { Sent } from "../rules/snippet";

// the types of the service do not have these routes yet; when they do, these are theirs
export interface Capture {
  id: string;
  name: string;
  state: "reading" | "stopped" | "done";
  model: string;
  sites: { site: string; layer: number; heads: number[] | null; width: number }[];
  dtype: "float32" | "float16" | "bfloat16";
  texts: number;
  tokens: number;
  rows: number;
  stored_bytes: number;
  job_id: string | null;
  created_at: string;
}
interface CaptureFiles extends Capture {
  files: { name: string; bytes: number }[];
}
interface CaptureList {
  captures: Capture[];
  stored_bytes: number;
  limit_mb: number;
}
// routes with the same parts, whose types stand in
const ALL = "/api/captures" as "/api/corpora";
const ONE = (id: string) => `/api/captures/${encodeURIComponent(id)}` as "/api/corpora";

export const captures = queryOptions({
  queryKey: ["captures", "list"] as const,
  queryFn: async ({ signal }) => (await request("get", ALL, { signal })) as unknown as CaptureList,
  // no event tells of captures
  refetchInterval: ({ state }) => (state.data?.captures.some((one) => one.state === "reading") === true ? BUSY_POLL : POLL),
});

/** The files of a capture. */
export const captureFiles = (id: string) =>
  queryOptions({
    queryKey: ["captures", "files", id] as const,
    queryFn: async ({ signal }) => ((await request("get", ONE(id), { signal })) as unknown as CaptureFiles).files,
  });

export async function removeCapture(id: string): Promise<void> {
  await send({ ...described("get", ONE(id)), method: "DELETE" });
}

/** The request for a file of a capture. */
export function captureFile(id: string, name: string): Sent {
  return described("get", `${ONE(id)}/files/${encodeURIComponent(name)}` as "/api/corpora");
}

/** The content of a file of a capture. */
export async function readCaptureFile(id: string, name: string): Promise<Blob> {
  return (await send(captureFile(id, name))).blob();
}

/** A request that makes a capture, for people who want to copy it. */
export function describedCapture(): Sent {
  const body = {
    name: "sea",
    texts: ["The boat sailed over the waves", "The king sat on the throne"],
    sites: [{ site: "resid_post", layers: "all" }],
    positions: "last",
  };
  return described("post", ALL, { body: body as never, query: { wait: true } as never });
}
