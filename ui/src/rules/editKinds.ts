// The kinds of edits: what each does to a feature, to a vector and to a site. A new kind is an entry here.
import type { Unit } from "./edits";

/** What an edit names: a feature, a vector, or the site whose value it replaces. */
export type Sort = "feature" | "vector" | "site";

/** The parts of an edit that its sentence names. */
export interface Said {
  name: string;
  /** The other vector of a swap. */
  to: string;
  /** The value or activation in another text that a replacement writes: `that of “The sea is” at its last token`. */
  source: string;
  value: number;
  /** The value as a person writes it. */
  number: string;
  unit: Unit | undefined;
}
interface EditKind {
  /** How the form names it, after what is edited. */
  choice: string;
  /** The value x afterwards; a is the activation of the feature, d its decoder row, p the part along the vector. */
  formula: string;
  takesValue: boolean;
  says: (said: Said) => string;
}
/** What a kind does to each sort; null where it does nothing to it. */
type OfAll = Record<Exclude<Sort, "site">, EditKind | null> & { site?: EditKind };

/** What is done to a name, all of the way or a part of it. */
const replaced = ({ value, number }: Said, whole: string, part: string, by: string) =>
  value === 1 ? `${whole} by ${by}` : `Move ${part} ${number} of the way to ${by}`;
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
  replace: {
    feature: {
      choice: "give it its activation in another text, or a part of the way",
      formula: "x + value · (a′ − a) · d",
      takesValue: true,
      says: (said) => replaced(said, `Replace the activation of ${said.name}`, `the activation of ${said.name}`, said.source),
    },
    vector: {
      choice: "write its numbers in the place of the value, or a part of the way",
      formula: "x + value · (v − x)",
      takesValue: true,
      says: (said) => replaced(said, "Replace the value", "the value", `the numbers of ${said.name}`),
    },
    site: {
      choice: "write the value of another text, or a part of the way",
      formula: "x + value · (s − x)",
      takesValue: true,
      says: (said) => replaced(said, `Replace ${said.name}`, said.name, said.source),
    },
  },
} satisfies Record<string, OfAll>;

export type Op = keyof typeof EDIT_KINDS;
export const OPS = Object.keys(EDIT_KINDS) as readonly Op[];

/** What a kind does to a sort. */
export function editKind(op: Op, sort: Sort): EditKind | null {
  const kinds: OfAll = EDIT_KINDS[op];
  return kinds[sort] ?? null;
}
