// The examples and the settings of a training, as a person writes them.
import { textsIn } from "./contrast";
import { choice, flag, number, text } from "./link";

export const EXAMPLES_MINIMUM = 2;
export const EXAMPLES_MAXIMUM = 500;
const LAYER_MAXIMUM = 10_000;

/** What an example is: a line, all lines up to an empty one, or all lines up to an empty one as a chat. */
export const EXAMPLE_FORMS = ["lines", "blocks", "chats"] as const;
export type ExampleForm = (typeof EXAMPLE_FORMS)[number];

/** The sites of a layer, the usual one first. */
export const SITES = {
  resid_post: "stream after the layer",
  resid_pre: "stream before the layer",
  resid_mid: "stream between attention and MLP",
  attn_out: "what attention adds",
  mlp_out: "what the MLP adds",
  hook_z: "heads before their projection",
  mlp_in: "input of the MLP",
  mlp_neurons: "neurons of the MLP",
} as const;
export type Site = keyof typeof SITES;

export const TRAINING = {
  /** The vector or the probe that is open. */
  id: text(),
  with: text(),
  without: text(),
  /** Whether the n-th example of one box and the n-th of the other one are a pair. */
  pairs: flag(),
  /** What the texts of each pair continue. */
  prompts: text(),
  form: choice(EXAMPLE_FORMS),
  method: choice(["mean_difference", "pca", "logistic"]),
  read: choice(["last", "mean", "mean_completion", "index"]),
  /** The token that is read with `index`. */
  index: number(-2, -100_000, 100_000),
  site: choice(Object.keys(SITES) as [Site, ...Site[]]),
  layers: text(),
  holdout: number(0.3, 0, 0.95),
  seed: number(0, 0, 2 ** 32 - 1),
  /** The job that is shown. */
  job: text(),
};

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}
export type Example = string | Message[];

/**
 * The examples that a person wrote into a box. A line of a chat that begins with `system:`, `user:` or `assistant:`
 * begins a message.
 *
 * Throws: Error, where a chat begins otherwise.
 */
export function examplesIn(written: string, form: ExampleForm): Example[] {
  if (form !== "chats") return textsIn(written, form);
  return textsIn(written, "blocks").map(chatIn);
}

const BEGINNING = /^\s*(system|user|assistant)\s*:[ \t]*/i;

function chatIn(block: string): Message[] {
  const messages: Message[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [beginning, role] = BEGINNING.exec(line) ?? [];
    const last = messages.at(-1);
    if (beginning !== undefined && role !== undefined) {
      messages.push({ role: role.toLowerCase() as Message["role"], content: line.slice(beginning.length) });
    } else if (last !== undefined) {
      last.content += `\n${line}`;
    } else {
      throw new Error(`Begin each chat with “system:”, “user:” or “assistant:”, not with “${line.slice(0, 30)}”.`);
    }
  }
  return messages;
}

/**
 * Layers as they are written: `2, 5` or `8-12`. Nothing means all layers.
 *
 * Throws: Error, where a part is no layer.
 */
export function layersIn(written: string): "all" | number[] {
  const parts = written.split(",").map((part) => part.trim()).filter((part) => part !== "");
  const layers = new Set<number>();
  for (const part of parts) {
    const [, first, last] = /^(\d{1,5})(?:\s*-\s*(\d{1,5}))?$/.exec(part) ?? [];
    const [from, to] = [Number(first), Number(last ?? first)];
    if (!(from <= to && to <= LAYER_MAXIMUM)) throw new Error(`“${part}” is no layer; write layers as 2, 5 or 8-12.`);
    for (let layer = from; layer <= to; layer += 1) layers.add(layer);
  }
  return layers.size === 0 ? "all" : [...layers].sort((a, b) => a - b);
}

export interface Pair {
  positive: Example;
  negative: Example;
  prompt?: string;
}

/**
 * The pairs of two boxes: the n-th example of one and the n-th of the other. With prompts, the texts of the n-th pair
 * continue the n-th prompt, behind a space.
 *
 * Throws: Error, where the boxes do not fit each other.
 */
export function pairsOf(positives: readonly Example[], negatives: readonly Example[], prompts: readonly string[]): Pair[] {
  if (positives.length !== negatives.length) {
    throw new Error(`One box has ${positives.length} examples and the other ${negatives.length}. A pair has one of each.`);
  }
  if (prompts.length === 0) return positives.map((positive, at) => ({ positive, negative: negatives[at] ?? "" }));
  if (prompts.length !== positives.length) {
    throw new Error(`There are ${positives.length} pairs and ${prompts.length} prompts. Write a prompt for each pair, or none.`);
  }
  return positives.map((positive, at) => ({
    positive: continued(positive),
    negative: continued(negatives[at] ?? ""),
    prompt: prompts[at] ?? "",
  }));
}

function continued(example: Example): Example {
  return typeof example === "string" ? ` ${example}` : example;
}

/** Why nothing can be trained on these examples; null where it can. */
export function missing(positives: readonly Example[], negatives: readonly Example[]): string | null {
  const sizes = [positives.length, negatives.length];
  if (Math.min(...sizes) < EXAMPLES_MINIMUM) return `Write at least ${EXAMPLES_MINIMUM} examples into each box.`;
  return Math.max(...sizes) > EXAMPLES_MAXIMUM ? `A box takes at most ${EXAMPLES_MAXIMUM} examples.` : null;
}
