// The two groups of texts of the Contrast page.
import { choice, number, text } from "./link";

/** What a text is: a line, or all lines up to an empty one. */
export const SPLITS = ["lines", "blocks"] as const;
export type Split = (typeof SPLITS)[number];
export const TEXTS_MINIMUM = 2;
export const TEXTS_MAXIMUM = 2_000;

export const CONTRAST = {
  /** The texts with the concept and those without it, as they are written. */
  with: text(),
  without: text(),
  split: choice(SPLITS),
  sae: text(),
  pool: choice(["max", "mean", "last"]),
  top: number(20, 1, 200),
  holdout: number(0.3, 0, 0.9),
  seed: number(0, 0, 2 ** 32 - 1),
  /** The job whose result is shown. */
  job: text(),
};

/** The texts that a person wrote into a box. */
export function textsIn(written: string, split: Split): string[] {
  const parts = split === "lines" ? written.split(/\r?\n/) : written.split(/\r?\n[ \t]*\r?\n/);
  return parts.map((part) => part.trim()).filter((part) => part !== "");
}

/** Why two groups cannot be compared; null where they can. */
export function lacking(positives: readonly string[], negatives: readonly string[]): string | null {
  const few = [positives, negatives].some((texts) => texts.length < TEXTS_MINIMUM);
  if (few) return `Write at least ${TEXTS_MINIMUM} texts into each box.`;
  const many = [positives, negatives].some((texts) => texts.length > TEXTS_MAXIMUM);
  return many ? `A box takes at most ${TEXTS_MAXIMUM.toLocaleString("en-US")} texts.` : null;
}

/** What the boxes have before texts are written. The sentences are of the world of the bundled model. */
export function firstTexts(isDemo: boolean): { with: string; without: string } {
  return isDemo ? EXAMPLE : { with: "", without: "" };
}

const EXAMPLE = {
  with: [
    "The boat sailed over the waves",
    "A whale swam near the ship",
    "The sailor saw the lighthouse",
    "The fish in the harbour",
    "A seagull cried above the shore",
    "The captain looked out at the sea",
  ].join("\n"),
  without: [
    "The farmer fed the cow",
    "She baked bread in the kitchen",
    "The king sat on the throne",
    "A bus drove down the street",
    "The teacher opened the book",
    "A knight rode to the castle",
  ].join("\n"),
};
