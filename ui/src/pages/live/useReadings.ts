// The readings of monitoring: the records, and the live events that came after them.
import { useEffect, useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import type { Rank } from "../../api/corpora";
import { useConnection, useLiveEvent } from "../../api/live";
import { readings as recorded, type Activations, type Monitoring, type Records } from "../../api/monitoring";
import { useGathered } from "../../parts/useGathered";
import { labelsIn, merged, ofEvent, ofRecord, type Reading } from "../../rules/readings";

/** How many readings the page shows. */
export const SHOWN = 60;
/** The least time between two drawings of events, in milliseconds. Nobody reads bars that change faster. */
const DRAWN = 200;
const NONE: Records = { records: [], total: 0 };

export function useReadings(pins: readonly number[], rank: Rank, state: Monitoring | undefined) {
  // without pinned features the events have all that is drawn, and one record is enough to begin with
  const query = useQuery({
    ...recorded(pins, pins.length === 0 ? 1 : SHOWN, rank),
    enabled: state?.sae_attached === true,
  });
  const { drawn: events, add, clear } = useGathered<Reading>(SHOWN, DRAWN);
  useLiveEvent("monitoring:activation", (payload) => add(ofEvent(payload as unknown as Activations)));
  const isConnected = useConnection() === "connected";
  const [sae_id, layer] = [state?.sae_id, state?.layer];
  // the records have all that was before, and nothing of what the service has forgotten
  useEffect(() => {
    if (isConnected) clear();
  }, [isConnected, sae_id, layer, clear]);

  const { records } = query.data ?? NONE;
  const theirs = useMemo(
    () => records.filter((record) => record.sae_id === sae_id && record.layer === layer),
    [records, sae_id, layer],
  );
  // events have no labels: those of all records that were read are kept
  const [labels, setLabels] = useState<ReadonlyMap<number, string>>(new Map());
  useEffect(() => setLabels(new Map()), [sae_id]);
  useEffect(() => setLabels((before) => withMore(before, labelsIn(theirs))), [theirs]);
  const readings = useMemo(() => merged(theirs.map(ofRecord), events, SHOWN), [theirs, events]);
  return { query, labels, readings };
}

/** The labels with those of newer records: the same map where they say nothing new, so that nothing is drawn again. */
function withMore(before: ReadonlyMap<number, string>, more: ReadonlyMap<number, string>) {
  const isKnown = [...more].every(([index, label]) => before.get(index) === label);
  return isKnown ? before : new Map([...before, ...more]);
}
