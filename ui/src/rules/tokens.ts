// The tokens of a text with the features that were read at each of them, and how one feature colours the text.

export interface TokenFeature {
  index: number;
  value: number;
  label?: string;
  /** The number that ranks it, where that is not the value. */
  weight?: number;
}
export interface Token {
  position: number;
  text: string;
  /** The strongest features, the largest first. Null where no pass of the model read the token, undefined without SAE. */
  features: readonly TokenFeature[] | null | undefined;
  /** The natural logarithm of the probability of the token after the tokens before it; null where not measured. */
  logprob?: number | null;
}
/** By what a text is coloured: a feature, or how little the model expected each token. */
export type Pick = number | "surprise";

/** The value of a token under a pick. `isExact` is false where the feature was too weak to be listed. */
export interface Shade {
  value: number;
  isExact: boolean;
}
/** A feature over a whole text. */
export interface Found {
  index: number;
  label: string | null;
  /** The two largest values, and the number of tokens at which the feature was listed. */
  most: number;
  second: number;
  count: number;
  /** What ranks it: the largest of its numbers that rank, or their sum. */
  weight: number;
}

/**
 * The value of a token under a pick; null where nothing was measured.
 *
 * `listed` is the number of features that each token has at most. A token with fewer has no further active feature.
 */
export function shade(token: Token, pick: Pick, listed: number): Shade | null {
  if (pick === "surprise") return token.logprob == null ? null : { value: 0 - token.logprob, isExact: true };
  if (token.features == null) return null;
  const feature = token.features.find(({ index }) => index === pick);
  return feature === undefined
    ? { value: 0, isExact: token.features.length < listed }
    : { value: feature.value, isExact: true };
}

/**
 * The largest magnitude of a pick in a text: the end of its scale. The first token is left out, because its values are
 * far above all others and say little.
 */
export function scaleOf(tokens: readonly Token[], pick: Pick, listed: number): number {
  let most = 0;
  for (const token of tokens) {
    if (token.position === 0) continue;
    most = Math.max(most, Math.abs(shade(token, pick, listed)?.value ?? 0));
  }
  return most;
}

/**
 * The features of a text, in the order of what ranks them. The first token is left out.
 *
 * Rarity is in bits, which add up over the tokens: what the text is about fires at many of them, while each of its words
 * has a feature that is as rare.
 */
export function found(tokens: readonly Token[], rank: "rarity" | "share" | "value" = "value"): Found[] {
  const all = new Map<number, Found>();
  for (const { position, features } of tokens) {
    if (position === 0 || features == null) continue;
    for (const { index, value, label, weight = value } of features) {
      const before = all.get(index);
      if (before === undefined) all.set(index, { index, label: label ?? null, most: value, second: 0, count: 1, weight });
      else {
        before.weight = rank === "rarity" ? before.weight + weight : Math.max(before.weight, weight);
        before.second = Math.max(Math.min(before.most, value), before.second);
        before.most = Math.max(before.most, value);
        before.count += 1;
      }
    }
  }
  return [...all.values()].sort((a, b) => b.weight - a.weight || a.index - b.index);
}

/**
 * The feature that tells most about a text: of those at no more than a third of the tokens, the one whose second largest
 * value is largest. A single large value, which the beginning of a text often has, says little.
 */
export function striking(features: readonly Found[], tokens: number): Found | undefined {
  const seldom = features.filter(({ count }) => count <= tokens / 3);
  return seldom.sort((a, b) => b.second - a.second)[0] ?? features[0];
}

/** The text of a token as its chip shows it: blanks that cannot be seen as signs. */
export function chipText(text: string): string {
  if (text === "") return "∅";
  return text.replaceAll("\r", "␍").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** Whether the next token begins a new line. */
export function endsLine(text: string): boolean {
  return text.includes("\n");
}
