import { describe, expect, it } from "vitest";
import { read, written } from "./link";
import {
  beginning,
  isPromptEmpty,
  listed,
  missing,
  named,
  opened,
  placed,
  promptOf,
  set,
  STEER,
  steered,
  steers,
  valuesOf,
} from "./steer";
import { intensities, pasted } from "./typed";

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

  it("bounds the features and the messages of a link", () => {
    const features = (count: number) => JSON.stringify(Array.from({ length: count }, (_, index) => [index, 1, 1]));
    const messages = (count: number) => JSON.stringify(Array(count).fill({ role: "user", content: "" }));
    expect([state(`f=${features(100)}`).f?.length, state(`f=${features(101)}`).f]).toEqual([100, null]);
    expect([state(`chat=${messages(200)}`).chat?.length, state(`chat=${messages(201)}`).chat]).toEqual([200, null]);
  });

  it("keeps what the tab had where a link brings only a feature, of whatever SAE", () => {
    const link = new URLSearchParams({ f: '[[4,8,1,"b@2"]]', sae: "b@2" });
    const kept = "prompt=One+day&for=live&f=%5B%5B90%2C20%2C1%5D%5D&sae=a%403";
    const both = read(opened(link, kept) ?? new URLSearchParams(), STEER);
    expect([both.prompt, both.sae, both.for, both.f]).toEqual([
      "One day",
      "b@2",
      "page",
      [
        [90, 20, 1, "a@3"],
        [4, 8, 1, "b@2"],
      ],
    ]);
    expect(opened(new URLSearchParams({ prompt: "x" }), kept)).toBeNull();
    expect(opened(link, null)).toBeNull();
  });

  it("gives the features of an older link the SAE of the link", () => {
    expect(placed(state("f=[[90,20,1]]&sae=a@3").f ?? [], "a@3")).toEqual([[90, 20, 1, "a@3"]]);
    expect(placed(state('f=[[90,20,1,"b@2"]]').f ?? [], "a@3")).toEqual([[90, 20, 1, "b@2"]]);
    expect(placed(state('f=[[90,20,1,""]]').f ?? [], "a@3")).toEqual([[90, 20, 1, "a@3"]]);
    for (const wrong of ['[[90,20,1,"b"]]', '[[90,20,1,"b@2",1]]', "[[90,20,1,3]]"]) expect(state(`f=${wrong}`).f).toBeNull();
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
    [90, 52.5, 1, "sae_b@2"],
    [90, 1, 1, "sae_a@3"],
    [4, 3, 0, "sae_c@4"],
    [5, 0, 1, "sae_a@3"],
  ] as const;
  const page = { ...state(), f: features };

  it("has the features that are on, each of its own SAE", () => {
    expect(named(steered(page, undefined, PLACE))).toEqual([
      { index: 90, value: 1, sae_id: "sae_a", layer: 3 },
      { index: 90, value: 52.5, sae_id: "sae_b", layer: 2 },
    ]);
    expect(valuesOf(features)).toEqual({ "sae_a@3": { "90": 1 }, "sae_b@2": { "90": 52.5 } });
    expect(missing(features, [PLACE, { sae_id: "sae_b", layer: 4 }])).toEqual(["sae_b@2"]);
  });

  it("changes the feature of one SAE", () => {
    expect(set(features, [90, 8, 1, "sae_a@3"])[1]).toEqual([90, 8, 1, "sae_a@3"]);
    expect(set(features, [90, 8, 1, "sae_c@4"])).toHaveLength(5);
  });

  it("is that of the page, and nobody else's", () => {
    expect(steers({ ...state(), f: null }, { enabled: true, values: { "1": 2 } }, PLACE)).toBe(false);
  });

  it("is exactly what is live, at all SAEs", () => {
    const live = { ...state("for=live"), f: null };
    const others = { enabled: true, values: { "1": 0, "7": 3 }, others: { "sae_b@2": { "1": 2 } } };
    expect(steered(live, others, PLACE)).toEqual([
      [7, 3, 1, "sae_a@3"],
      [1, 2, 1, "sae_b@2"],
    ]);
    expect(steers(live, { ...others, enabled: false }, PLACE)).toBe(false);
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
