// At which tokens of an answer its edits acted.
import type { AnswerTokens, Report } from "./comparison";

/** For each token of the answer, the places in the report of the edits that acted there. */
export function actedAt({ first, texts }: AnswerTokens, { edits }: Report): number[][] {
  const acted = texts.map((): number[] => []);
  for (const [place, { at }] of edits.entries()) {
    for (const [from, to] of at ?? []) {
      for (let index = Math.max(0, from - first); index <= to - first && index < texts.length; index++) acted[index]?.push(place);
    }
  }
  return acted;
}
