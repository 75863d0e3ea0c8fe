// The live values of the attached SAE that a document fits, and how they differ from the document.
import { useQuery } from "@tanstack/react-query";
import { claims, labels } from "../../api/documents";
import { attachments, steering } from "../../api/queries";
import { differences, fitting, liveAt, unclaimed, type Difference, type Values } from "../../rules/values";

export interface Compared {
  sae: { sae_id: string; layer: number };
  differences: Difference[];
}

/** Null where no attached SAE fits, and while that is not known. */
export function useCompared(values: Values, intensity: number, saeId: string | null, layer: number | null): Compared | null {
  const entries = useQuery(attachments).data?.entries ?? [];
  const sae = fitting(entries, saeId, layer);
  const live = useQuery(steering).data;
  if (sae === null || live === undefined) return null;
  return { sae, differences: differences(values, intensity, liveAt(live, entries, sae)) };
}

/** Labels of the features that differ: those of the document, and those of the SAE for other features. */
export function useDifferenceLabels(compared: Compared | null, own: ReadonlyMap<number, string>): ReadonlyMap<number, string> {
  const missing = compared?.differences.map(({ index }) => index).filter((index) => !own.has(index)) ?? [];
  const others = useQuery(labels(compared?.sae.sae_id ?? null, missing)).data;
  return others === undefined ? own : new Map([...own, ...others]);
}

/** How many values steer now that are not those of circuits. */
export function useUnclaimedCount(): number {
  const entries = useQuery(attachments).data?.entries ?? [];
  const held = useQuery(claims).data ?? [];
  const live = useQuery(steering).data;
  return live?.enabled === true ? unclaimed(live, entries, held) : 0;
}

/** How many values steer now, at all SAEs; null while that is not known. */
export function useLiveCount(): number | null {
  const attached = useQuery(attachments).data;
  const live = useQuery(steering).data;
  if (attached?.count === 0) return 0;
  if (live === undefined) return null;
  const maps = [live.values, ...Object.values(live.others ?? {})];
  return maps.reduce((sum, values) => sum + Object.values(values).filter((value) => value !== 0).length, 0);
}
