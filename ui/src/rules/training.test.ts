import { expect, it } from "vitest";
import { examplesIn, layersIn, missing, pairsOf } from "./training";

it("a chat is read message by message, and must begin with a role", () => {
  const written = "system: Be kind.\nuser: Hello:\nare you there?\nAssistant: Yes\n\nuser: Go";
  expect(examplesIn(written, "chats")).toEqual([
    [
      { role: "system", content: "Be kind." },
      { role: "user", content: "Hello:\nare you there?" },
      { role: "assistant", content: "Yes" },
    ],
    [{ role: "user", content: "Go" }],
  ]);
  expect(() => examplesIn("user: Go\n\nThe sea", "chats")).toThrow("“The sea”");
  expect(examplesIn("user: Go", "lines")).toEqual(["user: Go"]);
});

it("layers are numbers and spans of numbers; nothing means all", () => {
  expect(layersIn(" ")).toBe("all");
  expect(layersIn("12, 2-4,3")).toEqual([2, 3, 4, 12]);
  for (const wrong of ["4-2", "x", "-1", "2-", "99999"]) expect(() => layersIn(wrong)).toThrow("is no layer");
});

it("pairs are the examples at the same place, behind the prompt at this place", () => {
  const [positives, negatives] = [["a", "b"], ["c", "d"]];
  expect(pairsOf(positives, negatives, [])).toEqual([
    { positive: "a", negative: "c" },
    { positive: "b", negative: "d" },
  ]);
  expect(pairsOf(positives, negatives, ["x", "y"])[1]).toEqual({ positive: " b", negative: " d", prompt: "y" });
  expect(() => pairsOf(positives, ["c"], [])).toThrow("2 examples and the other 1");
  expect(() => pairsOf(positives, negatives, ["x"])).toThrow("2 pairs and 1 prompts");
});

it("too few and too many examples are named", () => {
  expect(missing(["a", "b"], ["c"])).toContain("at least 2");
  expect(missing(["a", "b"], Array<string>(501).fill("c"))).toContain("at most 500");
  expect(missing(["a", "b"], ["c", "d"])).toBeNull();
});
