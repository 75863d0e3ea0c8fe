// The text of a document inside the envelope of an export, without a change: 1.0 stays 1.0, and long numbers keep their
// digits.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** The text of a field of a JSON object, as it stands there; null where the object has no such field. */
export function fieldText(json: string, name: string): string | null {
  const wanted = JSON.stringify(name);
  const tokens = [...json.matchAll(TOKEN)];
  let depth = 0;
  let start: number | null = null;
  for (const [place, token] of tokens.entries()) {
    const text = token[0];
    if (depth === 1 && start !== null && (text === "," || text === "}")) return json.slice(start, token.index).trim();
    if (text === "{" || text === "[") depth += 1;
    else if (text === "}" || text === "]") depth -= 1;
    else if (depth === 1 && text === wanted && tokens[place + 1]?.[0] === ":" && tokens[place - 1]?.[0] !== ":") {
      start = (tokens[place + 1]?.index ?? 0) + 1;
    }
  }
  return null;
}

/** A JSON text with a line for each field and each entry. Its strings and numbers stay as they are written. */
export function indented(json: string): string {
  let depth = 0;
  let before = "";
  let result = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [text] of json.matchAll(TOKEN)) {
    const isClosing = text === "}" || text === "]";
    if (isClosing) {
      depth -= 1;
      if (before !== "{" && before !== "[") result += line();
    } else if (before === "{" || before === "[" || before === ",") {
      result += line();
    }
    result += text === ":" ? ": " : text;
    if (text === "{" || text === "[") depth += 1;
    before = text;
  }
  return `${result}\n`;
}

/** The name of a file for a document: `sea words` becomes `sea-words.cluster.json`. */
export function fileName(name: string, kind: string): string {
  const plain = name
    .normalize("NFKC")
    .replace(/[^\p{L}\p{N}._-]+/gu, "-")
    .replace(/^[-.]+|[-.]+$/g, "");
  return `${plain.slice(0, 80) || kind}.${kind}.json`;
}
