// A plain answer of /v1, without any SAE, read as a comparison with one side.
import { described, type Body } from "./client";
import type { StreamEvent } from "./stream";
import type { Report } from "../rules/comparison";
import type { Edit } from "../rules/edits";
import type { Interventions } from "../rules/interventions";
import type { Sent } from "../rules/snippet";
import type { components } from "./types.gen";

interface Chunk {
  model: string;
  choices: { text?: string; delta?: { content?: string | null }; finish_reason: string | null }[];
  steering_report?: Report;
  service?: { logprobs?: { token: string }[] };
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
}
type Started = components["schemas"]["CompareStarted"];
type Messages = Body<"/v1/chat/completions">["messages"];
type Asked = { prompt: string } | { messages: { role: string; content: string }[] };
interface Sampling {
  max_tokens: number;
  temperature: number;
  top_p: number;
  seed?: number;
}

/** What becomes of the text beside the prompt and the sampling. */
interface Edited {
  interventions?: NonNullable<Body<"/v1/completions">["interventions"]>;
  return_steering_report?: boolean;
  return_logprobs?: { top: number };
}
/** One side of a comparison that is asked for with a request of its own. */
export interface SideRequest {
  intensity: number;
  edits: readonly Edit[];
  sent: Sent;
}

/** The request for the text of a model, as it is or edited. A model that is no longer loaded is not loaded for it. */
export function answering(model: string, asked: Asked, sampling: Sampling, edited: Edited = {}): Sent {
  const headers = { "X-Service-Load-Policy": "refuse" };
  const common = { model, ...sampling, ...edited, stream: true, stream_options: { include_usage: true } };
  if ("prompt" in asked) return described("post", "/v1/completions", { headers, body: { ...common, ...asked } });
  // the service checks the roles
  const messages = asked.messages as Messages;
  return described("post", "/v1/chat/completions", { headers, body: { ...common, messages } });
}

/** The requests for both sides of a comparison with edits: the model as it is, whatever steers others, and edited. */
export function editing(model: string, asked: Asked, sampling: Sampling, wanted: Interventions): SideRequest[] {
  const side = (intensity: number, { edits, ...more }: Interventions): SideRequest => {
    const interventions = { edits, ...more } as NonNullable<Edited["interventions"]>;
    // the log-probabilities tell how the answer is cut into tokens
    const report = intensity === 0 ? {} : { return_steering_report: true, return_logprobs: { top: 0 } };
    return { intensity, edits, sent: answering(model, asked, sampling, { interventions, ...report }) };
  };
  return [side(0, { edits: [] }), side(1, wanted)];
}

/** The chunks of a plain answer as the events of one side of a comparison. Events of comparisons stay as they are. */
export async function* asComparison(
  events: AsyncIterable<StreamEvent>,
  side = 0,
  intensity = 0,
): AsyncGenerator<StreamEvent, void> {
  let finish: string | null = null;
  let isBegun = false;
  let texts: string[] | null = null;
  let first: number | null = null;
  let completion_tokens = 0;
  for await (const event of events) {
    if (event.name === "started") {
      const { sides, ...more } = event.data as Started;
      // a column shows the values of such a comparison; `edits` of a side are those that the page sent itself
      yield { ...event, data: { ...more, sides: sides.map(({ edits: _, ...one }) => one) } };
      continue;
    }
    if (event.name !== "message") {
      yield event;
      continue;
    }
    const { model, choices, usage, steering_report, service } = event.data as Chunk;
    texts = service?.logprobs?.map(({ token }) => token) ?? texts;
    first = usage?.prompt_tokens ?? first;
    if (!isBegun) {
      isBegun = true;
      const sides = [{ side, intensity, steering: {} }];
      yield { name: "started", data: { model, prompt_tokens: 0, sae: null, sides } };
    }
    const [choice] = choices;
    finish = choice?.finish_reason ?? finish;
    const text = choice?.text ?? choice?.delta?.content ?? "";
    // the number of tokens comes with one of the last chunks
    completion_tokens = usage?.completion_tokens ?? completion_tokens;
    if (steering_report !== undefined) yield { name: "report", data: { side, report: steering_report } };
    yield { name: "text", data: { side, intensity, text, finish_reason: finish, completion_tokens } };
  }
  if (texts !== null && first !== null) yield { name: "answer", data: { side, answer: { first, texts } } };
  if (finish !== null) yield { name: "done", data: {} };
}
