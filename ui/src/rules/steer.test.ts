import { describe, expect, it } from "vitest";
import { read, written } from "./link";
import {
  base,
  beginning,
  intensities,
  isPromptEmpty,
  listed,
  opened,
  pasted,
  promptOf,
  set,
  STEER,
  steers,
  valuesOf,
} from "./steer";

const PLACE = { sae_id: "sae_a", layer: 3 };
const state = (query = "") => read(new URLSearchParams(query), STEER);

describe("the state of the page", () => {
  it("goes through its link and back", () => {
    const changed = { as: "prompt", prompt: "One day", f: [[90, 52.5, 1]], for: "live", seed: 7, diff: false } as const;
    const query = written(new URLSearchParams(), STEER, changed);
    expect(read(new URLSearchParams(query.toString()), STEER)).toEqual({ ...state(), ...changed });
  });

  it("ignores features and intensities of another form", () => {
    expect(state("f=[[90,900,1]]").f).toBeNull();
    expect(state("sweep=[3]").sweep).toEqual([0, 0.5, 1, 1.5]);
  });

  it("keeps what the tab had where a link brings only a feature", () => {
    const link = new URLSearchParams({ f: "[[4,8,1]]", sae: "a@3" });
    const kept = "prompt=One+day&f=%5B%5B90%2C20%2C1%5D%5D&sae=a%403";
    const both = read(opened(link, kept) ?? new URLSearchParams(), STEER);
    expect([both.prompt, both.f]).toEqual([
      "One day",
      [
        [90, 20, 1],
        [4, 8, 1],
      ],
    ]);
    const other = opened(new URLSearchParams({ f: "[[4,8,1]]", sae: "b@2" }), kept);
    expect(read(other ?? new URLSearchParams(), STEER).f).toEqual([[4, 8, 1]]);
    expect(opened(new URLSearchParams({ prompt: "x" }), kept)).toBeNull();
    expect(opened(link, null)).toBeNull();
  });

  it("knows whether there is a prompt", () => {
    expect(isPromptEmpty(state())).toBe(true);
    const chat = JSON.stringify([
      { role: "user", content: "Hi" },
      { role: "user", content: " " },
    ]);
    expect(promptOf(state(`chat=${chat}`))).toEqual({ messages: [{ role: "user", content: "Hi" }] });
  });
});

describe("the steering that is compared", () => {
  const features = [
    [90, 52.5, 1],
    [4, 3, 0],
    [5, 0, 1],
  ] as const;

  it("has the features that are on", () => {
    expect(valuesOf(features)).toEqual({ "90": 52.5 });
    expect(set(features, 4, 8)[1]).toEqual([4, 8, 1]);
    expect(set(features, 6, 8)).toHaveLength(4);
  });

  it("is that of the page, and nobody else's", () => {
    const page = { ...state(), f: features };
    expect(base(page, PLACE, { enabled: true, values: { "1": 2 } }, 1)).toEqual({
      one: 1,
      body: { steering: { "90": 52.5 }, ...PLACE },
    });
    expect(steers(state(), { enabled: true, values: { "1": 2 } })).toBe(false);
  });

  it("is exactly what is live, at several SAEs at the intensity of what serves", () => {
    const live = state("for=live");
    expect(base(live, PLACE, { enabled: true, values: { "1": 2 } }, 0.5).body).toEqual({
      steering: { "1": 2 },
      ...PLACE,
    });
    const others = { enabled: true, values: {}, others: { "sae_b@2": { "1": 2 } } };
    expect(base(live, PLACE, others, 0.5)).toEqual({ one: 0.5, body: {} });
    expect(steers(live, others)).toBe(true);
    expect(steers(live, { ...others, enabled: false })).toBe(false);
  });
});

describe("what a person types", () => {
  it("may be several features with their values", () => {
    expect(pasted("90:52.5, 103=-2\n4:+1")).toEqual([
      { index: 90, value: 52.5 },
      { index: 103, value: -2 },
      { index: 4, value: 1 },
    ]);
    for (const wrong of ["", "sea", "90", "90:201", "90:x"]) expect(pasted(wrong)).toBeNull();
  });

  it("may be several intensities", () => {
    expect(intensities("1, 0 0.5;1")).toEqual([0, 0.5, 1]);
    for (const wrong of ["", "3", "a", "-1"]) expect(intensities(wrong)).toBeNull();
  });
});

it("asks for fewer features where the texts are long", () => {
  expect(listed(state(), 2)).toBe(32);
  expect(listed(state("max=4000"), 2)).toBe(8);
});

it("begins with the typical strength on a step of the slider", () => {
  expect([47.593, 3.14159, 120.4, null].map(beginning)).toEqual([47.5, 3.1, 120, 10]);
});
