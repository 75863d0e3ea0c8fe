import { expect, it } from "vitest";
import { meanAfter } from "./likelihood";

it("is the mean over the tokens after the prompt, and not known where the prompt was read in another way", () => {
  const scores = { tokens: ["<s>", "One", " day", " a"], token_logprobs: [null, -5, -1, -2] };
  expect(meanAfter(["<s>", "One"], scores)).toBe(-1.5);
  expect(meanAfter(["<s>", "One day"], scores)).toBeNull();
  expect(meanAfter(["<s>", "One", " day", " a"], scores)).toBeNull();
});
