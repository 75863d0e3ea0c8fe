import { expect, it } from "vitest";
import { gone, missing, NOTHING, type Known } from "./gone";

const BEFORE: Known = {
  model: "demo",
  isLocked: true,
  lease: { holder: "lab", endsAt: 10_000 },
  saes: ["sae_a at layer 3", "sae_b at layer 2"],
  values: ["sae_a@3:90", "sae_a@3:7"],
};

it.each<[string, Partial<Known>, string[]]>([
  ["everything", NOTHING, ["the model demo", "2 SAEs", "2 live values", "the lock of the model", "the lease of lab"]],
  ["nothing", BEFORE, []],
  ["one SAE and its values", { ...BEFORE, saes: ["sae_b at layer 2"], values: [] }, ["the SAE sae_a at layer 3", "2 live values"]],
  ["one live value", { ...BEFORE, values: ["sae_a@3:90"] }, ["1 live value"]],
  ["the model, in whose place another one is", { ...BEFORE, model: "other" }, ["the model demo"]],
  ["the lease of one holder, in whose place is another one", { ...BEFORE, lease: { holder: "x", endsAt: 1 } }, ["the lease of lab"]],
])("what is gone after a restart: %s", (_, now, words) => {
  expect(gone(BEFORE, { ...NOTHING, ...now }, 5_000)).toEqual(words);
});

it("a lease that has ended meanwhile by its own time is not gone by the restart", () => {
  expect(gone(BEFORE, { ...BEFORE, lease: null }, 20_000)).toEqual([]);
});

it("what came back and goes again later did not go with the restart", () => {
  const left = missing(BEFORE, { ...BEFORE, values: [] });
  expect(gone(left, NOTHING, 5_000)).toEqual(["2 live values"]);
});
