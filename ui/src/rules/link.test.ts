import { describe, expect, it } from "vitest";
import { choice, faults, flag, json, number, read, text, written } from "./link";

const isList = (value: unknown): value is number[] =>
  Array.isArray(value) && value.every((part) => typeof part === "number");
const FIELDS = {
  prompt: text(),
  seed: number(1, 0, 1_000),
  raw: flag(),
  view: choice(["text", "tokens"]),
  features: json<number[]>([], "a list of numbers", isList),
};
const DEFAULTS = { prompt: "", seed: 1, raw: false, view: "text", features: [] };

describe("the state in a link", () => {
  it("comes back as it was written, whatever the text has in it", () => {
    const state = { prompt: 'A "quoted" & odd=text #1\nñ 🐳', seed: 7, raw: true, view: "tokens", features: [90, 3] } as const;
    const query = written(new URLSearchParams(), FIELDS, { ...state, features: [90, 3] });
    expect(read(new URLSearchParams(query.toString()), FIELDS)).toEqual(state);
  });

  it("leaves defaults out and keeps parts of others", () => {
    const query = written(new URLSearchParams("other=1&seed=5"), FIELDS, { seed: 1, prompt: "x" });
    expect(query.toString()).toBe("other=1&prompt=x");
  });

  it("has the default for a part that cannot be read", () => {
    const query = new URLSearchParams("seed=9999&raw=maybe&view=nope&features={broken");
    expect(read(query, FIELDS)).toEqual(DEFAULTS);
    expect(faults(query, FIELDS)).toEqual([
      "seed must be a number from 0 to 1000",
      "raw must be 1 or 0",
      "view must be one of text, tokens",
      "features must be a list of numbers",
    ]);
    expect(read(new URLSearchParams("seed="), FIELDS)).toEqual(DEFAULTS);
  });
});
