// The difference of two texts, word by word.

export type Kind = "same" | "left" | "right";
/** A stretch of words: in both texts, only in the left one, or only in the right one. */
export interface Stretch {
  kind: Kind;
  text: string;
}

const WORDS = /\s+|[\p{L}\p{N}_'’]+|[^\s\p{L}\p{N}_'’]/gu;
/** Beyond this number of cells the table of the longest common words would be too large for a browser. */
const CELLS = 4_000_000;

/** The words, blanks and signs of a text. Joined they are the text again. */
export function words(text: string): string[] {
  return text.match(WORDS) ?? [];
}

/**
 * The difference as stretches in reading order. The stretches that are not `right`, joined, are the left text; those
 * that are not `left`, joined, are the right text.
 */
export function diff(left: string, right: string): Stretch[] {
  const a = words(left);
  const b = words(right);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const middle = between(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return joined([
    ...a.slice(0, start).map((text): Stretch => ({ kind: "same", text })),
    ...middle,
    ...a.slice(a.length - end).map((text): Stretch => ({ kind: "same", text })),
  ]);
}

/**
 * One side of a difference for the eye: neighbouring stretches that differ are one, also across blanks and single words
 * that happen to be equal.
 */
export function marked(stretches: readonly Stretch[], own: "left" | "right"): { text: string; differs: boolean }[] {
  const result: { text: string; differs: boolean }[] = [];
  stretches.forEach(({ kind, text }, place) => {
    if (kind !== "same" && kind !== own) return;
    const isIsland = place > 0 && place < stretches.length - 1 && words(text).filter((word) => word.trim() !== "").length < 2;
    const differs = kind === own || isIsland;
    const last = result.at(-1);
    if (last?.differs === differs) last.text += text;
    else result.push({ text, differs });
  });
  return result;
}

/** The part of a text that must stay unmarked, so that marks show where two texts part and not that they do. */
const UNMARKED = 0.25;

/** Whether enough of both texts would stay unmarked. A text that is being written has marks. */
export function isWorthMarking(stretches: readonly Stretch[]): boolean {
  return (["left", "right"] as const).every((own) => {
    const parts = marked(stretches, own).map(({ text, differs }) => [words(text).filter((word) => word.trim() !== "").length, differs] as const);
    const whole = parts.reduce((sum, [size]) => sum + size, 0);
    const plain = parts.reduce((sum, [size, differs]) => sum + (differs ? 0 : size), 0);
    return whole === 0 || plain >= UNMARKED * whole;
  });
}

/** The words of both texts that are equal, as a part of all words without blanks; 1 for two empty texts. */
export function similarity(left: string, right: string): number {
  const size = (text: string) => words(text).filter((word) => word.trim() !== "").length;
  const whole = size(left) + size(right);
  if (whole === 0) return 1;
  const same = diff(left, right).filter((stretch) => stretch.kind === "same");
  return (2 * same.reduce((sum, stretch) => sum + size(stretch.text), 0)) / whole;
}

/** The difference by the longest common subsequence of words. */
function between(a: string[], b: string[]): Stretch[] {
  if (a.length * b.length > CELLS) {
    return [
      { kind: "left", text: a.join("") },
      { kind: "right", text: b.join("") },
    ];
  }
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const down = lengths[(i + 1) * width + j] ?? 0;
      const across = lengths[i * width + j + 1] ?? 0;
      const both = (lengths[(i + 1) * width + j + 1] ?? 0) + 1;
      lengths[i * width + j] = a[i] === b[j] ? both : Math.max(down, across);
    }
  }
  const result: Stretch[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    const one = a[i];
    const other = b[j];
    if (one !== undefined && one === other) {
      result.push({ kind: "same", text: one });
      i += 1;
      j += 1;
    } else if (
      one !== undefined &&
      (other === undefined || (lengths[(i + 1) * width + j] ?? 0) >= (lengths[i * width + j + 1] ?? 0))
    ) {
      result.push({ kind: "left", text: one });
      i += 1;
    } else {
      result.push({ kind: "right", text: other ?? "" });
      j += 1;
    }
  }
  return result;
}

/** Neighbours of one kind as one stretch. Between two equal stretches the left words come before the right ones. */
function joined(stretches: Stretch[]): Stretch[] {
  const result: Stretch[] = [];
  let left = "";
  let right = "";
  const flush = () => {
    if (left !== "") result.push({ kind: "left", text: left });
    if (right !== "") result.push({ kind: "right", text: right });
    left = right = "";
  };
  for (const { kind, text } of stretches) {
    const last = result.at(-1);
    if (kind === "left") left += text;
    else if (kind === "right") right += text;
    else if (left === "" && right === "" && last?.kind === "same") last.text += text;
    else {
      flush();
      if (text !== "") result.push({ kind, text });
    }
  }
  flush();
  return result;
}
