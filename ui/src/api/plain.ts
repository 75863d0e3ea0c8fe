// A plain answer of /v1, without any SAE, read as a comparison with one side.
import { described, type Body } from "./client";
import type { StreamEvent } from "./stream";
import type { Sent } from "../rules/snippet";

interface Chunk {
  model: string;
  choices: { text?: string; delta?: { content?: string | null }; finish_reason: string | null }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
}
type Messages = Body<"/v1/chat/completions">["messages"];
type Asked = { prompt: string } | { messages: { role: string; content: string }[] };
interface Sampling {
  max_tokens: number;
  temperature: number;
  top_p: number;
  seed?: number;
}

/** The request for the text of a model as it is. A model that is no longer loaded is not loaded for it. */
export function answering(model: string, asked: Asked, sampling: Sampling): Sent {
  const headers = { "X-Service-Load-Policy": "refuse" };
  const common = { model, ...sampling, stream: true, stream_options: { include_usage: true } };
  if ("prompt" in asked) return described("post", "/v1/completions", { headers, body: { ...common, ...asked } });
  // the service checks the roles
  const messages = asked.messages as Messages;
  return described("post", "/v1/chat/completions", { headers, body: { ...common, messages } });
}

/** The chunks of a plain answer as the events of a comparison with one side. Events of comparisons stay as they are. */
export async function* asComparison(events: AsyncIterable<StreamEvent>): AsyncGenerator<StreamEvent, void> {
  let finish: string | null = null;
  let isBegun = false;
  for await (const event of events) {
    if (event.name !== "message") {
      yield event;
      continue;
    }
    const { model, choices, usage } = event.data as Chunk;
    if (!isBegun) {
      isBegun = true;
      const sides = [{ side: 0, intensity: 0, steering: {} }];
      yield { name: "started", data: { model, prompt_tokens: 0, sae: null, sides } };
    }
    const [choice] = choices;
    finish = choice?.finish_reason ?? finish;
    const text = choice?.text ?? choice?.delta?.content ?? "";
    // the number of tokens comes with the last chunk
    const completion_tokens = usage?.completion_tokens ?? 0;
    yield { name: "text", data: { side: 0, intensity: 0, text, finish_reason: finish, completion_tokens } };
  }
  if (finish !== null) yield { name: "done", data: {} };
}
