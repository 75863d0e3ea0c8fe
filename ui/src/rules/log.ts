// The last lines of the log as the page keeps them: the lines that are there, and those that came since.

export interface Line {
  id: number;
}
export interface Answer<L extends Line> {
  lines: L[];
  last_id: number;
  dropped: number;
  kept: number;
}
export interface Kept<L extends Line> {
  lines: (L & { /** Lines before this one that the page has missed. */ missed?: number })[];
  last_id: number;
}

/** What is kept after an answer. An answer that does not continue what is kept, after a restart, is appended too. Without
 * a new line, it is the same value as before, so that nothing is drawn again. */
export function continued<L extends Line>(before: Kept<L> | undefined, { lines, last_id, dropped, kept }: Answer<L>): Kept<L> {
  if (before !== undefined && lines.length === 0 && last_id === before.last_id) return before;
  const [first, ...rest] = lines;
  const came = first !== undefined && dropped > 0 ? [{ ...first, missed: dropped }, ...rest] : lines;
  return { lines: [...(before?.lines ?? []), ...came].slice(-kept), last_id };
}

/** A field of a line as text. */
export function fieldText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
