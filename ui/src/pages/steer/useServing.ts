// What serves now and has a dial: the active cluster or profile, or the one circuit.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { health } from "../../api/queries";
import { circuit, clusters, dialProfile } from "../../api/documents";
import { notify } from "../../parts/Notices";
import { activeCircuits, dials } from "../../api/steer";

export interface Serving {
  kind: "cluster" | "profile" | "circuit";
  id: string;
  name: string;
  intensity: number;
  range: readonly [number, number];
  /** The service's own phrase for the evidence of a circuit. */
  evidence: string | null;
  dial: (intensity: number) => Promise<unknown>;
}
const WIDEST = [0, 2] as const;

/** What has the dial now; null where nothing serves, or where several circuits do. */
export function useServing(): Serving | null {
  const client = useQueryClient();
  const state = useQuery(health).data;
  const profile = state?.active_profile ?? null;
  const isCluster = profile?.source_kind === "cluster";
  const isCircuit = profile === null && state?.circuits?.serving === 1;
  const cluster = useQuery({ ...clusters, enabled: isCluster }).data?.clusters.find(({ id }) => id === profile?.id);
  const active = useQuery({ ...activeCircuits, enabled: isCircuit }).data;
  const only = isCircuit && Array.isArray(active) && active.length === 1 ? active[0] : undefined;
  const details = useQuery({ ...circuit(only?.id ?? ""), enabled: only !== undefined }).data;
  if (profile !== null) {
    const { id, name, intensity } = profile;
    return {
      kind: isCluster ? "cluster" : "profile",
      id,
      name,
      intensity: cluster?.intensity ?? intensity,
      range: cluster?.dial_range ?? WIDEST,
      evidence: null,
      dial: isCluster ? dials.cluster : async (value) => {
        const { steers } = await dialProfile(client, id, value);
        if (!steers) notify(`λ of ${name} is saved. The live values were changed since its activation, so they stay.`);
      },
    };
  }
  if (only === undefined) return null;
  return {
    kind: "circuit",
    id: only.id,
    name: only.name,
    intensity: only.intensity,
    range: details?.dial_range ?? WIDEST,
    evidence: only.rung_language,
    dial: dials.circuit,
  };
}
