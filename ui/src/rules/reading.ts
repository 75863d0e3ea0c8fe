// The tokens of a text from the answer of a scoring request: their texts, log-probabilities and features.
import type { Token, TokenFeature } from "./tokens";

export interface ReadText {
  model: string;
  tokens: Token[];
  sae: { sae_id: string; layer: number } | null;
}
/** What is read of the answer of `/v1/completions`. */
interface Answer {
  model: string;
  choices: { logprobs?: { tokens: string[]; token_logprobs: (number | null)[] } | null }[];
  usage: { prompt_tokens: number };
  service?: {
    sae_activations?: { sae_id: string; layer: number; positions: { position: number; features: TokenFeature[] }[] };
  };
}

export function readText({ model, choices, usage, service }: Answer): ReadText {
  const scores = choices[0]?.logprobs;
  const read = service?.sae_activations;
  const features = new Map(read?.positions.map((one) => [one.position, one.features]));
  const texts = scores?.tokens ?? [];
  // the answer ends with the token that would follow the text
  const tokens = texts.slice(0, usage.prompt_tokens).map((text, position) => ({
    position,
    text,
    features: read === undefined ? undefined : (features.get(position) ?? null),
    logprob: scores?.token_logprobs[position] ?? null,
  }));
  return { model, tokens, sae: read === undefined ? null : { sae_id: read.sae_id, layer: read.layer } };
}

/** Whether the features of a text can be ranked by more than their values: all 64 that are read of each token fit. */
export function mayRank(text: string): boolean {
  return new TextEncoder().encode(text).length / 4 + 16 <= 65_536 / 64;
}

/**
 * How many features each token may have, so that a text is read whole: the answer has at most 65,536 of them.
 *
 * `size` is the number of bytes that a token of the text has, on average. No token has less than one.
 */
export function listedFor(text: string, size: number): number {
  const tokens = new TextEncoder().encode(text).length / size + 16;
  return Math.max(1, Math.min(32, Math.floor(65_536 / tokens)));
}
