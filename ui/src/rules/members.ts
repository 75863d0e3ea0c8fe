// The SAEs that are about to be attached, each at its layer, as a part of the link: `sae_a@2,sae_b@3`.
import type { Field } from "./link";

export interface Member {
  sae_id: string;
  layer: number;
}

/** The most SAEs of one set. */
export const MOST = 16;

export const memberField: Field<Member[]> = {
  fallback: [],
  read(written) {
    const members = written.split(",").map((part) => {
      const [sae_id = "", layer = ""] = part.split("@");
      return { sae_id, layer: layer === "" ? NaN : Number(layer) };
    });
    const isWhole = members.every(({ sae_id, layer }) => sae_id !== "" && Number.isInteger(layer) && layer >= 0);
    return isWhole ? members.slice(0, MOST) : undefined;
  },
  write: (members) => members.map(({ sae_id, layer }) => `${sae_id}@${layer}`).join(","),
};

/** The members with one more. An SAE that is among them stays where it is. */
export function withMember(members: readonly Member[], added: Member): Member[] {
  const isThere = members.some(({ sae_id }) => sae_id === added.sae_id);
  return isThere || members.length >= MOST ? [...members] : [...members, added];
}

/** The members with the one at a place changed, or taken out where it is null. */
export function changedMember(members: readonly Member[], place: number, changed: Member | null): Member[] {
  return members.flatMap((member, at) => (at !== place ? [member] : changed === null ? [] : [changed]));
}
