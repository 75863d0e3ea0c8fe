// Which part of a generated text each token is. Answers carry tokens as ids; the stream carries texts.

/** A token with its text and its place in the whole text, in UTF-16 units. */
export interface Placed {
  position: number;
  text: string;
  start: number;
}

/**
 * The tokens of a text from the deltas of its stream, one for each token. Null where the counts differ: a delta then
 * has several tokens, and the page shows positions without texts.
 */
export function placed(deltas: readonly string[], tokens: number, first = 0): Placed[] | null {
  if (deltas.length !== tokens) return null;
  let start = 0;
  return deltas.map((text, index) => {
    const token = { position: first + index, text, start };
    start += text.length;
    return token;
  });
}

/** The index of the token that has a place of the text, by halving; -1 where no token has it. */
export function tokenAt(tokens: readonly Placed[], place: number): number {
  let low = 0;
  let high = tokens.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const token = tokens[middle];
    if (token === undefined) return -1;
    if (place < token.start) high = middle - 1;
    else if (place >= token.start + token.text.length) low = middle + 1;
    else return middle;
  }
  return -1;
}
