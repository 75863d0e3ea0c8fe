import { expect, it } from "vitest";
import { changedMember, memberField, withMember } from "./members";

const TWO = [
  { sae_id: "sae_a", layer: 2 },
  { sae_id: "sae_b", layer: 3 },
];

it("members are written into a link and read back", () => {
  expect(memberField.write(TWO)).toBe("sae_a@2,sae_b@3");
  expect(memberField.read("sae_a@2,sae_b@3")).toEqual(TWO);
  expect(memberField.read("sae_a")).toBeUndefined();
  for (const wrong of ["sae_a@-1", "sae_a@20000000", "sae_a@1e300", "sae_a@", "@2", Array(17).fill("a@1").join()]) {
    expect(memberField.read(wrong)).toBeUndefined();
  }
});

it("a member is added once, changed and taken out", () => {
  expect(withMember(TWO, { sae_id: "sae_a", layer: 9 })).toEqual(TWO);
  expect(withMember(TWO, { sae_id: "sae_c", layer: 1 })).toHaveLength(3);
  expect(changedMember(TWO, 1, { sae_id: "sae_b", layer: 0 })[1]).toEqual({ sae_id: "sae_b", layer: 0 });
  expect(changedMember(TWO, 0, null)).toEqual([TWO[1]]);
});
