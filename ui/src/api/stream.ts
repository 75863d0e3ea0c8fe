// Server-sent events of an answer, one by one. Leaving the loop, or the signal, ends the request.
import { isRecord, refusal } from "../rules/errors";
import type { Sent } from "../rules/snippet";
import { lost, send } from "./client";

export interface StreamEvent {
  /** The name of the event; `message` where it has none. */
  name: string;
  data: unknown;
}
export interface Stream {
  headers: Headers;
  events: AsyncGenerator<StreamEvent, void>;
}

/**
 * Send a request and read its stream. `[DONE]` ends the stream. An event with an error is thrown as an ApiError.
 *
 * The headers are there before the first event, because they say how the answer is steered.
 */
export async function stream(sent: Sent, signal?: AbortSignal): Promise<Stream> {
  const headers = { ...sent.headers, Accept: "text/event-stream" };
  const response = await send({ ...sent, headers }, signal);
  return { headers: response.headers, events: events(response) };
}

async function* events(response: Response): AsyncGenerator<StreamEvent, void> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (reader === undefined) return;
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw lost(error);
      });
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = parsed(block);
        if (event === null) continue;
        if (event.data === "[DONE]") return;
        if (isRecord(event.data) && isRecord(event.data["error"])) throw refusal(event.data, response.status);
        yield event;
      }
    }
  } finally {
    // a stream that was left is not read to its end
    await reader.cancel().catch(() => undefined);
  }
}

/** One event from its lines; null for a comment, which only keeps the connection open. */
export function parsed(block: string): StreamEvent | null {
  let name = "message";
  const lines: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [field = "", ...value] = line.split(":");
    const text = value.join(":").replace(/^ /, "");
    if (field === "event") name = text;
    if (field === "data") lines.push(text);
  }
  if (lines.length === 0) return null;
  const text = lines.join("\n");
  try {
    return { name, data: JSON.parse(text) as unknown };
  } catch {
    return { name, data: text };
  }
}
