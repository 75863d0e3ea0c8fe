// A comparison while it is written: the events of its stream, folded into what a page shows.
import type { Edit } from "./edits";
import type { Token } from "./tokens";

/** `waiting`: sent, and nothing came yet. */
export type Phase = "waiting" | "running" | "done" | "stopped" | "failed";
/** Values by SAE (`sae_id@layer`) and feature index. */
export type Steering = Readonly<Record<string, Readonly<Record<string, number>>>>;

export interface Side {
  intensity: number;
  steering: Steering;
  text: string;
  finish: "stop" | "length" | null;
  /** The number of tokens that are written. */
  written: number;
  /** The tokens of the prompt and of the text, where activations were asked for. */
  tokens: readonly Token[];
  /** The edits of a side that was asked for with edits, and what the service counted of them at its end. */
  edits?: readonly Edit[];
  report?: Report;
  /** The tokens of the answer, and the position of the first of them, where they were asked for. */
  answer?: AnswerTokens;
}
export interface AnswerTokens {
  first: number;
  texts: readonly string[];
}
/** What the edits of an answer did. */
export interface Report {
  state: string | null;
  changed: boolean;
  edits: readonly EditReport[];
}
export interface EditReport {
  /** The place of the edit in the request. */
  edit: number;
  source: string;
  op: string;
  /** The number of positions at which the edit was evaluated, and at which it changed something. */
  evaluated: number;
  acted: number;
  first: number | null;
  last: number | null;
  /** The largest change, as a part of the norm of the value. */
  max_change: number;
  /** All positions at which it changed something, as runs; null where there are too many. */
  at?: readonly (readonly [first: number, last: number])[] | null;
}
/** What the texts of a comparison depend on: the fields of its request, and the name of the model. */
export type Asked = Readonly<Record<string, unknown>>;
export interface Comparison {
  phase: Phase;
  /** What was sent last, and what the shown sides were asked with. They differ until the first answer comes. */
  sent: Asked;
  asked: Asked;
  error: unknown;
  model: string | null;
  sae: { sae_id: string; layer: number } | null;
  promptTokens: number | null;
  sides: readonly Side[];
  /** Moments of the clock in milliseconds: sent, first text, end. */
  sentAt: number;
  firstAt: number | null;
  endedAt: number | null;
}

export interface StartedSide {
  side: number;
  intensity: number;
  steering: Record<string, Record<string, number>>;
  edits?: readonly Edit[];
}
export interface CompareText {
  side: number;
  text: string;
  finish_reason: "stop" | "length" | null;
  completion_tokens: number;
  token?: Token | null;
}
/** What the fold reads of each event of a streamed comparison. */
export type CompareEvent =
  | {
      name: "started";
      data: {
        model: string;
        prompt_tokens: number;
        sae: { sae_id: string; layer: number } | null;
        sides: readonly StartedSide[];
      };
    }
  | { name: "prompt"; data: { side: number; tokens: readonly Token[] } }
  | { name: "text"; data: CompareText }
  | { name: "report"; data: { side: number; report: Report } }
  | { name: "answer"; data: { side: number; answer: AnswerTokens } }
  | { name: "done" };

/** A comparison that was sent. The texts of the one before stay until the new ones begin. */
export function sent(before: Comparison | undefined, asked: Asked, now: number): Comparison {
  const empty = { asked, model: null, sae: null, promptTokens: null, sides: [] };
  return {
    ...(before ?? empty),
    ...{ phase: "waiting", sent: asked, error: null, sentAt: now, firstAt: null, endedAt: null },
  };
}

const NAMES: Readonly<Record<string, string>> = {
  messages: "prompt",
  steering: "features",
  sae_steering: "features",
  interventions: "edits",
  sae_id: "features",
  layer: "features",
  max_tokens: "tokens",
  top_p: "top p",
};

/** The settings that texts were asked with and that are other ones now, in words. */
export function otherSettings(asked: Asked, now: Asked): string[] {
  const fields = [...new Set([...Object.keys(asked), ...Object.keys(now)])];
  const other = fields.filter((field) => JSON.stringify(asked[field]) !== JSON.stringify(now[field]));
  return [...new Set(other.map((field) => NAMES[field] ?? field))];
}

/** Whether all texts of a comparison are written to their end. */
export function isWhole({ sides }: Comparison): boolean {
  return sides.length > 0 && sides.every(({ finish }) => finish !== null);
}

export function applied(comparison: Comparison, events: readonly CompareEvent[], now: number): Comparison {
  return events.reduce((before, event) => one(before, event, now), comparison);
}

/**
 * A comparison that ended early: by the person, or by a refusal. One that was refused has no texts: those of the one before
 * would look like its answer.
 */
export function ended(comparison: Comparison, error: unknown, now: number): Comparison {
  const isRefused = error !== null && comparison.phase === "waiting";
  const none = isRefused ? { asked: comparison.sent, sides: [], model: null, sae: null, promptTokens: null } : {};
  return { ...comparison, ...none, phase: error === null ? "stopped" : "failed", error, endedAt: now };
}

function one(comparison: Comparison, event: CompareEvent, now: number): Comparison {
  switch (event.name) {
    case "started": {
      const { model, sae, prompt_tokens, sides } = event.data;
      const empty = { text: "", finish: null, written: 0, tokens: [] };
      return {
        ...comparison,
        phase: "running",
        asked: comparison.sent,
        model,
        sae,
        promptTokens: prompt_tokens,
        sides: sides.map(({ side: _, ...side }) => ({ ...side, ...empty })),
      };
    }
    case "prompt": {
      const { side, tokens } = event.data;
      return changed(comparison, side, (before) => ({ ...before, tokens: [...tokens, ...before.tokens] }));
    }
    case "text":
      return {
        ...changed(comparison, event.data.side, (before) => written(before, event.data, comparison.promptTokens ?? 0)),
        firstAt: comparison.firstAt ?? now,
      };
    case "report": {
      const { side, report } = event.data;
      return changed(comparison, side, (before) => ({ ...before, report }));
    }
    case "answer": {
      const { side, answer } = event.data;
      return changed(comparison, side, (before) => ({ ...before, answer }));
    }
    case "done":
      return { ...comparison, phase: "done", endedAt: now };
  }
}

function changed(comparison: Comparison, side: number, change: (before: Side) => Side): Comparison {
  return { ...comparison, sides: comparison.sides.map((before, index) => (index === side ? change(before) : before)) };
}

function written(before: Side, { text, finish_reason, completion_tokens, token }: CompareText, first: number): Side {
  const whole = before.text + text;
  const side = { ...before, text: whole, finish: finish_reason, written: completion_tokens };
  if (token) return { ...side, tokens: [...before.tokens, token] };
  // the last token of a side was read by no pass of the model, but its text is known
  const isLast = token === null && finish_reason === "length";
  return isLast ? { ...side, tokens: [...before.tokens, unread(before, whole, first)] } : side;
}

function unread(before: Side, whole: string, first: number): Token {
  const own = before.tokens.filter(({ position }) => position >= first);
  const chips = own.map(({ text }) => text).join("");
  const text = whole.startsWith(chips) ? whole.slice(chips.length) : "";
  return { position: first + own.length, text, features: null };
}

/** The values that a side adds to the model, the largest magnitude first. */
export function added(steering: Steering): { key: string; index: number; value: number }[] {
  return Object.entries(steering)
    .flatMap(([key, values]) => Object.entries(values).map(([index, value]) => ({ key, index: Number(index), value })))
    .filter(({ value }) => value !== 0)
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}
