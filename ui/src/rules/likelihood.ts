// How likely a text is after its prompt, from the answer of a scoring request.

interface Scores {
  tokens: readonly string[];
  token_logprobs: readonly (number | null)[];
}

/**
 * The mean log-probability of the tokens after a prompt; null where there are none, or where the prompt was read as
 * other tokens than before, so that it is not known which tokens are the text's.
 */
export function meanAfter(prompt: readonly string[], { tokens, token_logprobs }: Scores): number | null {
  if (prompt.some((text, place) => tokens[place] !== text)) return null;
  const own = token_logprobs.slice(prompt.length).filter((value) => value !== null);
  return own.length === 0 ? null : own.reduce((sum, value) => sum + value, 0) / own.length;
}
