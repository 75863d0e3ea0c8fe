import { expect, it } from "vitest";
import { textsOfFile, unreadable } from "./corpus";

it("reads the field of each line of JSON Lines, as a text or as a conversation", () => {
  const chat = [{ role: "user", content: "Hi", name: "left out" }];
  const lines = [JSON.stringify({ story: "a boat" }), "", JSON.stringify({ story: chat }), ""].join("\n");
  expect(textsOfFile("a.JSONL", lines, "story")).toEqual(["a boat", [{ role: "user", content: "Hi" }]]);
});

it.each([
  ['{"text": "a"}\n{', "Line 2 is not JSON."],
  ['\n{"other": "a"}', 'Line 2 has no field "text".'],
  ['{"text": []}', 'Line 1: "text" is neither a text nor a list of messages.'],
  ["7", 'Line 1 has no field "text".'],
])("names the line that is wrong", (content, why) => {
  expect(() => textsOfFile("a.jsonl", content, "text")).toThrow(why);
});

it("reads the texts between empty lines of a text file", () => {
  expect(textsOfFile("a.txt", "one\nline\r\n\r\n  \ntwo\n", "text")).toEqual(["one\nline", "two"]);
});

it("reads files of known kinds and of at most 64 MiB", () => {
  expect(unreadable("a.md", 10)).toBeNull();
  expect(unreadable("a.csv", 10)).toContain(".jsonl, .ndjson, .txt");
  expect(unreadable("a.txt", 65 * 2 ** 20)).toContain("at most 64 MiB");
});
