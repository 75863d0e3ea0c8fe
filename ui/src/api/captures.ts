// Captures: the values of sites of the model over many texts, in files.
import { queryOptions } from "@tanstack/react-query";
import { described, request, send, type Data } from "./client";
import { BUSY_POLL, POLL } from "./queries";
import type { Sent } from "../rules/snippet";

export type Capture = Data<"/api/captures">["captures"][number];

export const captures = queryOptions({
  queryKey: ["captures", "list"] as const,
  queryFn: ({ signal }) => request("get", "/api/captures", { signal }),
  // no event tells of captures
  refetchInterval: ({ state }) => (state.data?.captures.some((one) => one.state === "reading") === true ? BUSY_POLL : POLL),
});

/** The files of a capture. */
export const captureFiles = (capture_id: string) =>
  queryOptions({
    queryKey: ["captures", "files", capture_id] as const,
    queryFn: async ({ signal }) => (await request("get", "/api/captures/{capture_id}", { path: { capture_id }, signal })).files,
  });

export async function removeCapture(capture_id: string): Promise<void> {
  await request("delete", "/api/captures/{capture_id}", { path: { capture_id } });
}

/** The request for a file of a capture. */
export function captureFile(capture_id: string, name: string): Sent {
  return described("get", "/api/captures/{capture_id}/files/{name}", { path: { capture_id, name } });
}

/** The content of a file of a capture. */
export async function readCaptureFile(capture_id: string, name: string): Promise<Blob> {
  return (await send(captureFile(capture_id, name))).blob();
}

/** A request that makes a capture, for people who want to copy it. */
export function describedCapture(): Sent {
  const body = {
    name: "sea",
    texts: ["The boat sailed over the waves", "The king sat on the throne"],
    sites: [{ site: "resid_post", layers: "all" as const }],
    positions: "last",
  };
  return described("post", "/api/captures", { body, query: { wait: true } });
}
