// The logit lens of a text.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Data } from "./client";

export type LensAnswer = Data<"/api/lens", "post">;

/** The most probable tokens of each position that the page shows. */
const TOP = 5;

const bodyOf = (text: string, layers: readonly number[] | null) => ({
  text,
  top: TOP,
  ...(layers === null ? {} : { layers: [...layers] }),
});

/** What each layer says about the next token, at each token of a text; of all layers or of some. */
export const lens = (text: string, layers: readonly number[] | null) =>
  queryOptions({
    queryKey: ["lens", text, layers] as const,
    queryFn: ({ signal }) => request("post", "/api/lens", { signal, body: bodyOf(text, layers) }),
    staleTime: Infinity,
    retry: false,
  });

export function describedLens(text: string, layers: readonly number[] | null) {
  return described("post", "/api/lens", { body: bodyOf(text, layers) });
}
