// The kinds of edits: what each does to a feature and to a vector. A new kind is an entry here.
import type { Unit } from "./edits";

/** The parts of an edit that its sentence names. */
export interface Said {
  name: string;
  /** The other vector of a swap. */
  to: string;
  value: number;
  /** The value as a person writes it. */
  number: string;
  unit: Unit | undefined;
}
interface EditKind {
  /** How the form names it, after the feature or the vector. */
  choice: string;
  /** The value x afterwards; a is the activation of the feature, d its decoder row, p the part along the vector. */
  formula: string;
  takesValue: boolean;
  says: (said: Said) => string;
}
/** What a kind does to a feature and to a vector; null where it does nothing of that sort. */
type OfBoth = Record<"feature" | "vector", EditKind | null>;

const amount = ({ number, unit }: Said) => (unit === "max" ? `${number} times its largest activation` : number);

export const EDIT_KINDS = {
  add: {
    feature: {
      choice: "add it",
      formula: "x + value · d",
      takesValue: true,
      says: (said) => `Add ${said.name} at ${said.unit !== "max" && said.value > 0 ? "+" : ""}${amount(said)}`,
    },
    vector: {
      choice: "add it",
      formula: "x + value · v",
      takesValue: true,
      says: ({ name, number, unit }) => {
        if (unit === "unit") return `Add ${name} with the length ${number}`;
        return unit === "residual" ? `Add ${name} with ${number} of the length of the value` : `Add ${number} × ${name}`;
      },
    },
  },
  set: {
    feature: {
      choice: "hold its activation at",
      formula: "x + (value − a) · d",
      takesValue: true,
      says: (said) => `Hold ${said.name} at ${amount(said)}`,
    },
    vector: {
      choice: "hold the part along it at",
      formula: "x + (value − p) · v̂",
      takesValue: true,
      says: ({ name, number }) => `Hold the part along ${name} at ${number}`,
    },
  },
  at_least: {
    feature: {
      choice: "keep its activation at or above",
      formula: "x + (max(a, value) − a) · d",
      takesValue: true,
      says: (said) => `Keep ${said.name} at ${amount(said)} or above`,
    },
    vector: {
      choice: "keep the part along it at or above",
      formula: "x + (max(p, value) − p) · v̂",
      takesValue: true,
      says: ({ name, number }) => `Keep the part along ${name} at ${number} or above`,
    },
  },
  at_most: {
    feature: {
      choice: "keep its activation at or below",
      formula: "x + (min(a, value) − a) · d",
      takesValue: true,
      says: (said) => `Keep ${said.name} at ${amount(said)} or below`,
    },
    vector: {
      choice: "keep the part along it at or below",
      formula: "x + (min(p, value) − p) · v̂",
      takesValue: true,
      says: ({ name, number }) => `Keep the part along ${name} at ${number} or below`,
    },
  },
  scale: {
    feature: {
      choice: "multiply its activation by",
      formula: "x + (value − 1) · a · d",
      takesValue: true,
      says: ({ name, number }) => `Multiply ${name} by ${number}`,
    },
    vector: {
      choice: "multiply the part along it by",
      formula: "x + (value − 1) · p · v̂",
      takesValue: true,
      says: ({ name, number }) => `Multiply the part along ${name} by ${number}`,
    },
  },
  ablate: {
    feature: { choice: "take it out", formula: "x − a · d", takesValue: false, says: ({ name }) => `Take ${name} out` },
    vector: {
      choice: "take it out",
      formula: "x − value · p · v̂",
      takesValue: true,
      says: ({ name, value, number }) => (value === 1 ? `Take ${name} out` : `Take ${number} of ${name} out`),
    },
  },
  swap: {
    feature: null,
    vector: {
      choice: "turn it into another vector",
      formula: "x + p · (t̂ − v̂)",
      takesValue: false,
      says: ({ name, to }) => `Turn ${name} into ${to}`,
    },
  },
} satisfies Record<string, OfBoth>;

export type Op = keyof typeof EDIT_KINDS;
export const OPS = Object.keys(EDIT_KINDS) as readonly Op[];

/** What a kind does to a feature or to a vector. */
export function editKind(op: Op, sort: "feature" | "vector"): EditKind | null {
  return EDIT_KINDS[op][sort];
}
