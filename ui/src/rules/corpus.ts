// The texts of a corpus that a file gives, as the service reads files: JSON Lines, or texts between empty lines.
import { textsIn } from "./contrast";
import { isRecord } from "./errors";

export interface Message {
  role: string;
  content: string;
}
export type CorpusText = string | Message[];

/** The kinds of files that a corpus is read of. */
export const JSON_LINES = [".jsonl", ".ndjson"];
export const TEXT_FILES = [".txt", ".text", ".md"];
/** The largest file that the page reads, in bytes. */
export const FILE_MAXIMUM = 64 * 2 ** 20;
export const TEXTS_MAXIMUM = 100_000;

/** Why the page does not read a file; null where it does. */
export function unreadable(name: string, size: number): string | null {
  const kinds = [...JSON_LINES, ...TEXT_FILES];
  if (!endsIn(name, kinds)) return `${name}: the name of a corpus file ends in one of ${kinds.join(", ")}.`;
  if (size > FILE_MAXIMUM)
    return `${name}: the page reads files of at most 64 MiB. Put it on the machine of the service, and name it there.`;
  return null;
}

/**
 * The texts of a file with this name and content. `field` is the field of each line of JSON Lines that has the text or
 * the messages.
 */
export function textsOfFile(name: string, content: string, field: string): CorpusText[] {
  if (!endsIn(name, JSON_LINES)) return textsIn(content, "blocks");
  return content.split("\n").flatMap((line, at) => (line.trim() === "" ? [] : [textOfLine(line, at + 1, field)]));
}

function textOfLine(line: string, number: number, field: string): CorpusText {
  let entry: unknown;
  try {
    entry = JSON.parse(line);
  } catch {
    throw new Error(`Line ${number} is not JSON.`);
  }
  if (!isRecord(entry) || !(field in entry)) throw new Error(`Line ${number} has no field ${JSON.stringify(field)}.`);
  const value = entry[field];
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.length > 0 && value.every(isMessage)) {
    return value.map(({ role, content }) => ({ role, content }));
  }
  throw new Error(`Line ${number}: ${JSON.stringify(field)} is neither a text nor a list of messages.`);
}

function isMessage(value: unknown): value is Message {
  return isRecord(value) && typeof value["role"] === "string" && typeof value["content"] === "string";
}

function endsIn(name: string, ends: readonly string[]): boolean {
  return ends.some((end) => name.toLowerCase().endsWith(end));
}
