// How much a text repeats itself.
import { words } from "./diff";

const RUN = 3;

/** The part of the runs of three words that stood in the text before; null for a text of fewer words than two runs. */
export function repetition(text: string): number | null {
  const own = words(text.toLowerCase()).filter((word) => /[\p{L}\p{N}]/u.test(word));
  const runs = own.slice(RUN - 1).map((_, at) => own.slice(at, at + RUN).join(" "));
  return runs.length < 2 ? null : 1 - new Set(runs).size / runs.length;
}
