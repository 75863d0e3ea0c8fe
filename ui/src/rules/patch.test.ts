import { describe, expect, it } from "vitest";
import { read, written } from "./link";
import { bodyOf, lacking, layersIn, metricSaid, numbersIn, offered, pairsIn, PATCH, positionsIn, type PatchState } from "./patch";

const EMPTY = read(new URLSearchParams(), PATCH);
const WHOLE: PatchState = { ...EMPTY, clean: "The boat sailed over the", corrupt: "The king sat over the", target: " sea", against: " cow" };

const listed = (site: string, heads: number | null = null, can_write = true) => ({ site, heads, can_write });
const OFFERED = offered([listed("resid_post"), listed("pattern", 4, false), listed("mlp_out"), listed("hook_z", 4), listed("hook_z", 2), listed("k", 2)]);

it("the sites that can be written are offered in the order of a pass, each once", () => {
  expect(OFFERED.map(({ site }) => site)).toEqual(["k", "hook_z", "mlp_out", "resid_post"]);
  expect(OFFERED.map(({ hasHeads }) => hasHeads)).toEqual([true, true, false, false]);
});

describe("what a person writes", () => {
  it.each([
    ["0-3, 8", [0, 1, 2, 3, 8]],
    ["-1 2", [-1, 2]],
    ["3,3,2", [3, 2]],
    ["", null],
    ["3-1", null],
    ["one", null],
    ["0-9999999", null],
  ])("%j are the numbers %j", (text, numbers) => {
    expect(numbersIn(text)).toEqual(numbers);
  });

  it("layers are all, or numbers from 0 on", () => {
    expect([layersIn("all"), layersIn(" "), layersIn("2-3"), layersIn("-1"), layersIn("x")]).toEqual(["all", "all", [2, 3], null, null]);
  });

  it.each([
    ["", []],
    ["0-1:0-1, 2:4", [[0, 0], [1, 1], [2, 4]]],
    ["1:2:3", null],
    ["1", null],
    ["0-2:1-2", null],
    ["a:1", null],
  ])("%j are the pairs %j", (text, pairs) => {
    expect(pairsIn(text)).toEqual(pairs);
  });

  it("positions are each alone, or groups between semicolons", () => {
    expect(positionsIn({ at: "each", positions: "x" })).toBe("each");
    expect(positionsIn({ at: "some", positions: "1, 4-6" })).toEqual([1, 4, 5, 6]);
    expect(positionsIn({ at: "some", positions: "1; 4-6;" })).toEqual([[1], [4, 5, 6]]);
    expect(positionsIn({ at: "some", positions: "1; x" })).toBeNull();
    expect(positionsIn({ at: "some", positions: ";" })).toBeNull();
  });
});

it.each<[Partial<PatchState>, string | null]>([
  [{}, null],
  [{ clean: "" }, "Write both texts."],
  [{ corrupt: WHOLE.clean }, "The two texts are the same."],
  [{ sites: [] }, "Choose a site."],
  [{ layers: "x" }, "Write layers such as 0-3, 8, or all."],
  [{ at: "some" }, "Write positions such as 1, 4-6, or groups with a semicolon between them."],
  [{ align: "1" }, "Write pairs of tokens such as 0-3:0-3, 5:6."],
  [{ target: "" }, "Write the token that the clean text leads to."],
  [{ against: "" }, "Write the token that it is compared with."],
  [{ against: " sea" }, "The two tokens of the metric are the same."],
  [{ metric: "logprob", against: "" }, null],
  [{ metric: "kl", target: "", against: "" }, null],
])("with %j it lacks %j", (part, lacks) => {
  expect(lacking({ ...WHOLE, ...part })).toBe(lacks);
});

it("the request has what is written, and no field that does not count", () => {
  expect(bodyOf(WHOLE, OFFERED)).toEqual({
    ...{ clean: "The boat sailed over the", corrupt: "The king sat over the", sites: ["resid_post"], layers: "all" },
    ...{ positions: "each", direction: "denoise", noise_repeats: 4 },
    metric: { kind: "logit_difference", target_token: " sea", against_token: " cow" },
  });
  const more = { ...WHOLE, as: "chat", sites: ["hook_z"], heads: true, layers: "1", target: "#77", metric: "logprob", align: "1:2" } as const;
  expect(bodyOf(more, OFFERED)).toMatchObject({
    align: [[1, 2]],
    ...{ clean: { messages: [{ role: "user", content: WHOLE.clean }] }, layers: [1], heads: "each" },
    metric: { kind: "logprob", target_token: 77 },
  });
  expect(bodyOf({ ...more, sites: ["hook_z", "mlp_out"] }, OFFERED)).not.toHaveProperty("heads");
  expect(bodyOf({ ...more, metric: "kl" }, OFFERED).metric).toEqual({ kind: "kl" });
});

it("a link has the whole state", () => {
  const state = { ...WHOLE, sites: ["hook_z", "q"], heads: true, at: "some", positions: "1; 2", align: "0:1", job: "job_1" } as const;
  expect(read(written(new URLSearchParams(), PATCH, state), PATCH)).toEqual(state);
  expect(read(new URLSearchParams("sites=A B"), PATCH).sites).toEqual(["resid_post"]);
});

it("says the metric in words", () => {
  expect(metricSaid(WHOLE)).toBe("the logit of “ sea” less that of “ cow”");
  expect(metricSaid({ metric: "logprob", target: "", against: "" })).toBe("the log-probability that the target token is next");
});
