// How likely texts are for the model without steering, after the prompt that they were written for.
import { queryOptions } from "@tanstack/react-query";
import { meanAfter } from "../rules/likelihood";
import { request } from "./client";

/** Args: `prompt` has the tokens of the prompt as the model read them. The answer has a number or null for each text. */
export function likelihoods(model: string | null, prompt: readonly string[], texts: readonly string[]) {
  return queryOptions({
    queryKey: ["reading", "likelihood", model, prompt.join(""), texts] as const,
    queryFn: async ({ signal }) => {
      const { choices } = await request("post", "/v1/completions", {
        // a model that is not loaded any more is not loaded for this
        headers: { "X-Service-Load-Policy": "refuse" },
        body: {
          ...{ model: model ?? "", prompt: texts.map((text) => prompt.join("") + text) },
          // the tokens of the prompt have its special tokens already
          ...{ max_tokens: 0, temperature: 0, logprobs: 0, echo: true, add_special_tokens: false },
        },
        signal,
      });
      return choices.map(({ logprobs }) => (logprobs == null ? null : meanAfter(prompt, logprobs)));
    },
    enabled: model !== null && prompt.length > 0 && texts.length > 0,
    staleTime: Infinity,
    gcTime: Infinity,
    retry: false,
  });
}
