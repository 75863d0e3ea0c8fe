import { expect, it, vi } from "vitest";
import { parsed, stream, type StreamEvent } from "./stream";

const SENT = { method: "POST", url: "http://h/v1/chat/completions", headers: {} };

/** An answer whose bytes come in the given parts. */
function streamed(...parts: (string | Uint8Array)[]) {
  const bytes = parts.map((part) => (typeof part === "string" ? new TextEncoder().encode(part) : part));
  const cancelled = vi.fn();
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const next = bytes.shift();
      if (next === undefined) controller.close();
      else controller.enqueue(next);
    },
    cancel: cancelled,
  });
  vi.stubGlobal("fetch", vi.fn(() => Promise.resolve(new Response(body, { headers: { "X-Service-Seed": "5" } }))));
  return cancelled;
}

async function all(): Promise<StreamEvent[]> {
  const events: StreamEvent[] = [];
  for await (const event of (await stream(SENT)).events) events.push(event);
  return events;
}

it("joins events that were cut anywhere, even inside a character", async () => {
  const whale = new TextEncoder().encode('data: {"text":"🐳"}\n\n');
  streamed(whale.slice(0, 16), whale.slice(16), 'data: {"te', 'xt":"b"}\r\n', "\r\ndata: [DONE]\n\n");
  expect((await all()).map(({ data }) => data)).toEqual([{ text: "🐳" }, { text: "b" }]);
});

it("reads names, comments and data of several lines", () => {
  expect(parsed("event: left\ndata: {\ndata: }")).toEqual({ name: "left", data: {} });
  expect(parsed(": keep-alive")).toBeNull();
  expect(parsed("data: plain")).toEqual({ name: "message", data: "plain" });
});

it("throws an error inside the stream with its code", async () => {
  streamed('data: {"text":"a"}\n\n', 'data: {"error":{"message":"gone","code":"engine_unavailable"}}\n\n');
  await expect(all()).rejects.toMatchObject({ code: "engine_unavailable", message: "gone" });
});

it("ends the request when the loop is left", async () => {
  const cancelled = streamed('data: {"n":1}\n\n', 'data: {"n":2}\n\n', 'data: {"n":3}\n\n');
  for await (const event of (await stream(SENT)).events) if (event.data !== null) break;
  expect(cancelled).toHaveBeenCalled();
});

it("has the headers before the first event", async () => {
  streamed("data: [DONE]\n\n");
  expect((await stream(SENT)).headers.get("x-service-seed")).toBe("5");
});
