// What the boxes of a training ask for.
import type { TrainingBody } from "../../api/training";
import type { useLink } from "../../parts/useLink";
import { examplesIn, layersIn, missing, pairsOf, type Example, type Pair, type TRAINING } from "../../rules/training";

/** The boxes, as they are written. */
export interface Written {
  with: string;
  without: string;
  layers: string;
  prompts: string;
}
type Settings = ReturnType<typeof useLink<typeof TRAINING>>[0];

/** The request for what is written, or why there is none. */
export function bodyOf(written: Written, settings: Settings, name: string): TrainingBody | string {
  const { form, method, index, site, holdout, seed } = settings;
  const read = settings.read === "index" ? { index } : settings.read;
  const prompts = settings.pairs && form !== "chats" ? examplesIn(written.prompts, form) : [];
  let positives: Example[], negatives: Example[], layers: "all" | number[], pairs: Pair[] | null;
  try {
    positives = examplesIn(written.with, form);
    negatives = examplesIn(written.without, form);
    layers = layersIn(written.layers);
    pairs = settings.pairs ? pairsOf(positives, negatives, prompts as string[]) : null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  const why = missing(positives, negatives);
  if (why !== null) return why;
  if (read === "mean_completion" && form !== "chats" && prompts.length === 0) {
    return "A completion needs prompts for pairs, or chats that end with the assistant.";
  }
  if (name === "") return "Give it a name.";
  const examples = pairs === null ? { positives, negatives } : { pairs };
  return { name, ...examples, method, layers, ...(site === "resid_post" ? {} : { site }), read, holdout, seed };
}

/** How many examples a box has, also where they are no chats yet. */
export function sizeOf(written: string, form: Settings["form"]): number {
  return examplesIn(written, form === "chats" ? "blocks" : form).length;
}
