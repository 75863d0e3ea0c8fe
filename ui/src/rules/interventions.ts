// The field `interventions` of the requests of the Steer page.
import { sentEdits, type Edit } from "./edits";
import { named, switchedOn, type SteerState } from "./steer";

export interface Interventions {
  edits: Edit[];
  preserve_norm?: true;
}

/** The edits of a request of the page, with its features first; null where its values alone say it all. */
export function interventionsOf(state: SteerState): Interventions | null {
  const edits = state.for === "page" ? sentEdits(state.e) : [];
  if (edits.length === 0) return null;
  const values = named(switchedOn(state.f ?? [])).map(({ value, ...feature }): Edit => ({ op: "add", feature, value }));
  return { edits: [...values, ...edits], ...(state.norm ? { preserve_norm: true } : {}) };
}
