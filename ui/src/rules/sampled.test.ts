import { expect, it } from "vitest";
import { DRAWN, drawn, telling } from "./sampled";

it("a seed draws different features, the same ones again, and no more than there are", () => {
  expect(new Set(drawn(4_608, 3)).size).toBe(DRAWN);
  expect(drawn(4_608, 3)).toEqual(drawn(4_608, 3));
  expect(drawn(4_608, 4)).not.toEqual(drawn(4_608, 3));
  expect(drawn(5, 0).sort()).toEqual([0, 1, 2, 3, 4]);
});

it("the features with an example are shown, the rarest first, and those that hardly fire last", () => {
  const feature = (name: string, density: number, examples = 1) => ({
    name,
    corpora: [{ tokens: 1_000, density, examples: Array.from({ length: examples }, () => ({ is_strongest: true })) }],
  });
  const all = [feature("often", 0.4), feature("once", 0.001), feature("never", 0, 0), feature("rare", 0.02), { name: "unread", corpora: [] }];
  expect(telling(all).map(({ name }) => name)).toEqual(["rare", "often", "once"]);
});
