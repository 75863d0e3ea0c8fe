// The SAEs that are about to be attached, each at its layer, as a part of the link: `sae_a@2,sae_b@3`.
import type { Field } from "./link";

export interface Member {
  sae_id: string;
  layer: number;
}

/** The most SAEs of one set. */
export const MOST = 16;
/** The highest layer that is offered. */
export const LAYER_MOST = 999;

export const memberField: Field<Member[]> = {
  fallback: [],
  expected: `at most ${MOST} SAEs such as sae_a@2, with layers from 0 to ${LAYER_MOST}`,
  read(written) {
    const members = written.split(",").map((part) => {
      const [, sae_id = "", layer] = /^([^@]{1,50})@(\d{1,3})$/.exec(part) ?? [];
      return { sae_id, layer: Number(layer) };
    });
    const isWhole = members.length <= MOST && members.every(({ sae_id }) => sae_id !== "");
    return isWhole ? members : undefined;
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
