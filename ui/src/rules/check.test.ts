import { expect, it } from "vitest";
import { checkFigures, l0Words } from "./check";

it("figures have their scale, and what was not measured is a dash and is not drawn", () => {
  const [l0, fvu, , norms] = checkFigures({ l0: 24, fvu: 0.21 }, 32);
  expect(l0).toMatchObject({ says: "24.0", claim: "32", scale: 40 });
  expect(fvu).toMatchObject({ drawn: [0, 0.21], scale: 1, claim: null });
  expect(norms).toMatchObject({ drawn: null, says: "–", scale: null });
});

it("an FVU above 1 stays on its scale", () => {
  expect(checkFigures({ fvu: 4 }, null)[1]?.scale).toBe(5);
});

it("the measured L0 is compared with the claimed one in words", () => {
  expect(l0Words(24, 24)).toBe("about as claimed");
  expect(l0Words(240, 24)).toBe("10 times the claim");
  expect(l0Words(6, 24)).toBe("25 % of the claim");
  expect(l0Words(undefined, 24)).toBeNull();
  expect(l0Words(24, null)).toBeNull();
});
