import { describe, expect, it } from "vitest";
import { chipText, found, scaleOf, shade, striking, type Token } from "./tokens";

const TOKENS: Token[] = [
  {
    position: 0,
    text: "<s>",
    features: [
      { index: 1, value: 300 },
      { index: 2, value: 200 },
    ],
  },
  {
    position: 1,
    text: "The",
    features: [
      { index: 7, value: 9 },
      { index: 2, value: 4, label: "sea" },
    ],
    logprob: -0.5,
  },
  { position: 2, text: " sea", features: [{ index: 2, value: 20, label: "sea" }], logprob: -3 },
  { position: 3, text: ".", features: null },
];

describe("the shade of a token", () => {
  it("is the value of the feature, and of no token that was not read", () => {
    expect(shade(TOKENS[2]!, 2, 2)).toEqual({ value: 20, isExact: true });
    expect(shade(TOKENS[3]!, 2, 2)).toBeNull();
  });

  it("is exactly 0 only where all active features are listed", () => {
    expect(shade(TOKENS[1]!, 5, 2)).toEqual({ value: 0, isExact: false });
    expect(shade(TOKENS[2]!, 5, 2)).toEqual({ value: 0, isExact: true });
  });

  it("is the surprise where it was measured", () => {
    expect(shade(TOKENS[2]!, "surprise", 2)?.value).toBe(3);
    expect(shade(TOKENS[0]!, "surprise", 2)).toBeNull();
  });

  it("has a scale without the first token", () => {
    expect(scaleOf(TOKENS, 2, 2)).toBe(20);
    expect(scaleOf(TOKENS, 1, 2)).toBe(0);
  });
});

describe("the features of a text", () => {
  it("are ordered by what ranks them, where that is not the value", () => {
    const features = [
      { index: 1, value: 80, weight: 0.8 },
      { index: 2, value: 6, weight: 3.6 },
    ];
    expect(found([{ position: 1, text: "a", features }]).map(({ index }) => index)).toEqual([2, 1]);
  });
  it("are ordered by their rarity added up over the tokens", () => {
    const word = { index: 1, value: 9, weight: 7 };
    const sea = { index: 2, value: 40, weight: 4 };
    const tokens = [1, 2].map((position) => ({ position, text: "a", features: position === 1 ? [word, sea] : [sea] }));
    expect(found(tokens, "rarity").map(({ index, weight }) => [index, weight])).toEqual([
      [2, 8],
      [1, 7],
    ]);
    expect(found(tokens, "share").map(({ index }) => index)).toEqual([1, 2]);
  });
  it("are ordered by their largest value, with the tokens that have them", () => {
    expect(found(TOKENS)).toEqual([
      { index: 2, label: "sea", most: 20, second: 4, count: 2, weight: 20 },
      { index: 7, label: null, most: 9, second: 0, count: 1, weight: 9 },
    ]);
  });

  it("of which the most telling is seldom active", () => {
    expect(striking(found(TOKENS), 3)?.index).toBe(7);
    expect(striking(found(TOKENS), 30)?.index).toBe(2);
    expect(striking([], 3)).toBeUndefined();
  });
});

it("shows blanks that cannot be seen", () => {
  expect([chipText(" a\n"), chipText("\t"), chipText("")]).toEqual([" a↵", "⇥", "∅"]);
});
