// The logit lens and trained lenses of a text, and the registered trained lenses.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import { everyPage } from "./documents";
import type { Job } from "./jobs";
import { POLL } from "./queries";
import type { Place } from "../rules/steer";

export type LensAnswer = Data<"/api/lens", "post">;
export type TrainedLens = Data<"/api/lenses">["lenses"][number];
export type LensBody = Body<"/api/lenses">;

/** The most probable tokens of each position that the page shows. */
const TOP = 5;
/** The features of an attribution that the page shows. */
const ATTRIBUTED = 8;
export const LOGIT = "logit";

const bodyOf = (text: string, layers: readonly number[] | null, kind: string) => ({
  text,
  top: TOP,
  ...(layers === null ? {} : { layers: [...layers] }),
  ...(kind === LOGIT ? {} : { kind }),
});

/** What each layer says about the next token, at each token of a text; of all layers or of some. */
export const lens = (text: string, layers: readonly number[] | null, kind: string) =>
  queryOptions({
    queryKey: ["lens", text, layers, kind] as const,
    queryFn: ({ signal }) => request("post", "/api/lens", { signal, body: bodyOf(text, layers, kind) }),
    staleTime: Infinity,
    retry: false,
  });

export function describedLens(text: string, layers: readonly number[] | null, kind: string) {
  return described("post", "/api/lens", { body: bodyOf(text, layers, kind) });
}

export type Attribution = Data<"/api/attribution", "post">;
export type Method = Attribution["method"];

/** What the features of an SAE add to the logit of one token of a text, less that of another or the mean logit. */
export const attribution = (tokens: readonly string[], at: number, against: string, method: Method, place: Place) =>
  queryOptions({
    queryKey: ["attribution", tokens, at, against, method, place] as const,
    queryFn: async ({ signal }) => {
      const ask = (text: string) =>
        request("post", "/api/attribution", {
          signal,
          body: {
            text,
            position: -1,
            target_token: tokens[at] ?? "",
            ...(against === "" ? {} : { against_token: against }),
            ...place,
            method,
            top: ATTRIBUTED,
          },
        });
      const before = tokens.slice(0, at);
      // some tokenizers put the first token of a prompt before a text by themselves
      const found = await ask(before.join(""));
      return found.position === at - 1 || at < 2 ? found : await ask(before.slice(1).join(""));
    },
    staleTime: Infinity,
    retry: false,
  });

export const lenses = queryOptions({
  queryKey: ["lenses"] as const,
  queryFn: async ({ signal }) =>
    (await everyPage((query) => request("get", "/api/lenses", { signal, query }), ({ lenses: rows }) => rows)).rows,
  // no event tells of lenses
  refetchInterval: POLL,
});

/** Begin to register a lens. It goes on as a job, also where the page is left. */
export async function registerLens(body: LensBody): Promise<string> {
  return (await request("post", "/api/lenses", { body })).job.id;
}

export function describedRegistration(body: LensBody) {
  return described("post", "/api/lenses", { body, query: { wait: true } });
}

/** The lens that a job has registered; null for the result of another kind of job. */
export function registeredBy({ result }: Job): TrainedLens | null {
  return result !== null && "unembed_hash" in result ? result : null;
}

export function removeLens(lens_id: string) {
  return request("delete", "/api/lenses/{lens_id}", { path: { lens_id } });
}
