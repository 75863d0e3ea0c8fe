import { expect, it } from "vitest";
import { listedFor, readText } from "./reading";

it("joins the texts, the log-probabilities and the features of a scored text", () => {
  const answer = {
    model: "demo",
    choices: [{ logprobs: { tokens: ["<s>", "One", " day"], token_logprobs: [null, -2.7, -1.4] } }],
    usage: { prompt_tokens: 2 },
    service: {
      sae_activations: {
        sae_id: "sae_a",
        layer: 3,
        positions: [{ position: 1, features: [{ index: 25, value: 258.7 }] }],
      },
    },
  };
  expect(readText(answer)).toEqual({
    model: "demo",
    sae: { sae_id: "sae_a", layer: 3 },
    tokens: [
      { position: 0, text: "<s>", features: null, logprob: null },
      { position: 1, text: "One", features: [{ index: 25, value: 258.7 }], logprob: -2.7 },
    ],
  });
});

it("asks for fewer features of a long text", () => {
  expect([listedFor("short", 1), listedFor("x".repeat(40_000), 4), listedFor("x".repeat(40_000), 1)]).toEqual([
    32, 6, 1,
  ]);
});
