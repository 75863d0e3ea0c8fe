// The readings of monitoring: the records, and the live events that came after them.
import { useEffect, useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { useConnection, useLiveEvent } from "../../api/live";
import { readings as recorded, type Activations, type Monitoring, type Records } from "../../api/monitoring";
import { useAtMost } from "../../parts/useAtMost";
import { labelsIn, merged, ofEvent, ofRecord, type Reading } from "../../rules/readings";

/** How many readings the page shows. */
export const SHOWN = 60;
/** The least time between two drawings, in milliseconds. */
const DRAWN = 100;
const NONE: Records = { records: [], total: 0 };

export function useReadings(pins: readonly number[], state: Monitoring | undefined) {
  // without pinned features the events have all that is drawn, and one record is enough to begin with
  const query = useQuery({
    ...recorded(pins, pins.length === 0 ? 1 : SHOWN),
    enabled: state?.sae_attached === true,
  });
  const [events, setEvents] = useState<readonly Reading[]>([]);
  useLiveEvent("monitoring:activation", (payload) => {
    const reading = ofEvent(payload as unknown as Activations);
    setEvents((before) => [...before, reading].slice(-SHOWN));
  });
  const isConnected = useConnection() === "connected";
  const [sae_id, layer] = [state?.sae_id, state?.layer];
  // the records have all that was before, and nothing of what the service has forgotten
  useEffect(() => {
    if (isConnected) setEvents([]);
  }, [isConnected, sae_id, layer]);

  const { records } = query.data ?? NONE;
  const theirs = useMemo(
    () => records.filter((record) => record.sae_id === sae_id && record.layer === layer),
    [records, sae_id, layer],
  );
  // events have no labels: those of all records that were read are kept
  const [labels, setLabels] = useState<ReadonlyMap<number, string>>(new Map());
  useEffect(() => setLabels(new Map()), [sae_id]);
  useEffect(() => setLabels((before) => new Map([...before, ...labelsIn(theirs)])), [theirs]);
  const readings = useMemo(() => merged(theirs.map(ofRecord), events, SHOWN), [theirs, events]);
  return { query, labels, readings: useAtMost(readings, DRAWN) };
}
