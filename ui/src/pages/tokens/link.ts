// The state of the Tokens page that its link carries.
import { RANKS } from "../../parts/RankChoice";
import { choice, text, type Field } from "../../rules/link";
import type { Pick } from "../../rules/tokens";

export const EXAMPLE =
  "One evening, a sailor sailed past the lighthouse. The sea was as smooth as glass, and a seagull cried above the shore. " +
  "In the morning he rode home over the drawbridge of the castle.";

/** By what the text is coloured; null lets the page choose. */
const pick: Field<Pick | null> = {
  fallback: null,
  expected: "a feature index or the word surprise",
  read: (written) => (written === "surprise" ? written : /^\d{1,9}$/.test(written) ? Number(written) : undefined),
  write: (value) => (value === null ? "" : String(value)),
};

export const TOKENS = { text: text(), sae: text(), pick, rank: choice(RANKS) };
