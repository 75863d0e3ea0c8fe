import { expect, it } from "vitest";
import { checkFigures, l0Words, readWords } from "./check";

const PLAIN = { check: {}, over: null, k: null, claimedL0: null };
const OVER = { corpus_id: "corpus_1", name: "Brown", tokens: 100_000, features_fired: 4_600, never_fired: 8, l0: 30 };
const CHECK = { text: "a short story of the service", tokens: 95, features_fired: 400, l0: 24, fvu: 0.21 };

it("figures have their scale, and what was not measured is a dash and is not drawn", () => {
  const [l0, fvu, norms] = checkFigures({ ...PLAIN, check: { l0: 24, fvu: 0.21 }, claimedL0: 32 });
  expect(l0).toMatchObject({ says: "24.0", claim: "32", scale: 40 });
  expect(fvu).toMatchObject({ drawn: [0, 0.21], scale: 1, claim: null });
  expect(norms).toMatchObject({ drawn: null, says: "–", scale: null });
});

it("an FVU above 1 stays on its scale", () => {
  expect(checkFigures({ ...PLAIN, check: { fvu: 4 } })[1]?.scale).toBe(5);
});

it("the measured L0 is compared with the claimed one in words", () => {
  expect(l0Words(24, 24)).toBe("about as claimed");
  expect(l0Words(240, 24)).toBe("10 times the claim");
  expect(l0Words(6, 24)).toBe("25 % of the claim");
  expect(l0Words(undefined, 24)).toBeNull();
  expect(l0Words(24, null)).toBeNull();
});

it("the check says what it read, and a corpus gives the figures that it cannot see", () => {
  const alone = { ...PLAIN, check: CHECK };
  expect(readWords(alone).join(" ")).toBe(
    "The self-check read a short story of the service, 95 tokens. 400 features fired there; other texts may wake others.",
  );
  expect(checkFigures(alone).map(({ name, says }) => [name, says])).not.toContainEqual([expect.stringMatching(/fire|dead/), expect.anything()]);
  const [l0, , fire] = checkFigures({ ...alone, over: OVER });
  expect([l0?.says, fire?.says]).toEqual(["30.0", "4,600 of 4,608"]);
  expect(readWords({ ...alone, over: OVER })).toHaveLength(1);
});

it("the L0 of a top-k SAE is no evidence", () => {
  const chosen = { ...PLAIN, check: { fvu: 0.2 }, k: 32, claimedL0: 32 };
  expect(checkFigures(chosen).map(({ name }) => name)).not.toContain("L0");
  expect(readWords(chosen)).toEqual([
    "The SAE always chooses 32 features at a token (top-k), so their number is no evidence.",
  ]);
});
