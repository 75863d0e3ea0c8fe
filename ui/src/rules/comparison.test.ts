import { describe, expect, it } from "vitest";
import { added, applied, ended, otherSettings, sent, type CompareEvent } from "./comparison";

const TOKEN = { position: 1, text: "On", features: [{ index: 90, value: 52 }] };
const STARTED: CompareEvent = {
  name: "started",
  data: {
    model: "demo",
    prompt_tokens: 1,
    sae: { sae_id: "sae_a", layer: 3 },
    sides: [
      { side: 0, intensity: 0, steering: {} },
      { side: 1, intensity: 1, steering: { "sae_a@3": { 4: -2, 90: 52.5, 91: 0 } } },
    ],
  },
};
const ASKED = { seed: 1 };
const text = (side: number, words: string, more = {}): CompareEvent => ({
  name: "text",
  data: { side, text: words, finish_reason: null, completion_tokens: 1, ...more },
});

describe("a comparison", () => {
  it("collects the texts of both sides", () => {
    const events = [STARTED, text(0, "On"), text(1, "At"), text(0, "ce", { completion_tokens: 2 })];
    const comparison = applied(sent(undefined, ASKED, 5), events, 9);
    expect(comparison.phase).toBe("running");
    expect(comparison.sides.map((side) => side.text)).toEqual(["Once", "At"]);
    expect(comparison.sides[0]?.written).toBe(2);
    expect([comparison.sentAt, comparison.firstAt]).toEqual([5, 9]);
  });

  it("keeps the texts before until the new ones begin", () => {
    const first = applied(sent(undefined, ASKED, 0), [STARTED, text(0, "old"), { name: "done" }], 1);
    const again = sent(first, { seed: 2 }, 2);
    expect([again.phase, again.sides[0]?.text, again.asked]).toEqual(["waiting", "old", ASKED]);
    const begun = applied(again, [STARTED], 3);
    expect([begun.sides[0]?.text, begun.asked]).toEqual(["", { seed: 2 }]);
  });

  it("puts the prompt before the text, and a last token that nothing read", () => {
    const prompt: CompareEvent = {
      name: "prompt",
      data: { side: 0, tokens: [{ position: 0, text: "<s>", features: [] }] },
    };
    const last = text(0, "ce", { token: null, finish_reason: "length", completion_tokens: 2 });
    const [side] = applied(sent(undefined, ASKED, 0), [STARTED, prompt, text(0, "On", { token: TOKEN }), last], 1).sides;
    expect(side?.tokens.map((token) => [token.position, token.text, token.features === null])).toEqual([
      [0, "<s>", false],
      [1, "On", false],
      [2, "ce", true],
    ]);
  });

  it("is stopped by the person and failed by a refusal", () => {
    const running = applied(sent(undefined, ASKED, 0), [STARTED], 1);
    expect(ended(running, null, 2).phase).toBe("stopped");
    expect(ended(running, new Error("no"), 2).phase).toBe("failed");
  });

  it("leaves no texts of the one before when it is refused before it begins", () => {
    const before = applied(sent(undefined, ASKED, 0), [STARTED, { name: "done" }], 1);
    const again = sent(before, { prompt: "other" }, 2);
    expect(ended(again, new Error("no"), 3)).toMatchObject({ sides: [], asked: { prompt: "other" }, phase: "failed" });
    expect(ended(again, null, 3).sides).toHaveLength(before.sides.length);
  });

  it("names what a side adds, the largest first", () => {
    const steering = { "sae_a@3": { 4: -2, 90: 52.5, 91: 0 } };
    expect(added(steering).map(({ index }) => index)).toEqual([90, 4]);
  });

  it("names the settings that are other ones now", () => {
    const asked = { prompt: "One day", seed: 1, sae_steering: { features: [] } };
    expect(otherSettings(asked, { ...asked })).toEqual([]);
    expect(otherSettings(asked, { messages: [], seed: 2 })).toEqual(["prompt", "seed", "features"]);
  });
});
