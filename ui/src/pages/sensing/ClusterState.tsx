// Cluster sensing: what is armed, the quorum, the figures, and a switch for each cluster.
import { useState } from "react";
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { clusters } from "../../api/documents";
import { watched } from "../../api/queries";
import { clusterSensing, switchSensing, type ClusterSensing } from "../../api/sensing";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { QueryPanel } from "../../parts/Panel";
import { milliseconds, span } from "../../rules/age";
import { count } from "../../rules/bytes";
import { FactList } from "../documents/FactList";
import { useAction } from "../documents/actions";
import { Intents } from "./Intents";

export function ClusterState() {
  const status = useQuery(watched(clusterSensing));
  const all = useQuery(clusters).data?.clusters ?? [];
  const change = useAction(({ id, isOn }: { id: string; isOn: boolean }) => switchSensing(id, isOn));
  return (
    <QueryPanel title="Cluster sensing" query={status} about="An enabled cluster is armed while it is active.">
      {(data) => (
        <>
          <Intents
            items={all.map(({ id, name, sensing_enabled }) => ({
              id,
              name,
              isOn: sensing_enabled,
              isArmed: data.armed && data.profile_id === id,
            }))}
            isPending={change.isPending}
            onSwitch={(id, isOn) => change.mutate({ id, isOn })}
            empty={
              <>
                No cluster is imported. <Link to="/clusters">Import one.</Link>
              </>
            }
          />
          {data.armed && data.profile_id !== null && <Quorum key={data.profile_id} id={data.profile_id} status={data} />}
          <FactList
            facts={[
              ["Context tokens", data.context_tokens],
              ["Thresholds", data.threshold_mode?.replaceAll("_", " ")],
              ["Last overhead", milliseconds(data.last_request_overhead_ms)],
              ["Recorded since start", count(data.events_recorded_since_start)],
              ["Not sent live", count(data.ws_events_throttled)],
              ["Kept", `${count(data.retention.max_events_per_cluster)} of each, ${span(data.retention.max_age_days * 86_400)}`],
            ]}
          />
        </>
      )}
    </QueryPanel>
  );
}

/** How many members must fire at one token. */
function Quorum({ id, status }: { id: string; status: ClusterSensing }) {
  const [draft, setDraft] = useState<string | null>(null);
  const set = useAction(
    (least: number | null) => request("put", "/api/sensing/{profile_id}/config", { path: { profile_id: id }, body: { min_k: least } }),
    { isShown: true, onSuccess: () => setDraft(null) },
  );
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        set.mutate(Number(draft ?? status.min_k));
      }}
    >
      <label htmlFor="quorum">Members that fire together, at least</label>
      <div className="row">
        <input
          id="quorum"
          type="number"
          className="quorum"
          min={1}
          max={status.sensable_count}
          value={draft ?? status.min_k ?? ""}
          onChange={(event) => setDraft(event.target.value)}
        />
        <span className="quiet">of {count(status.sensable_count)} that can</span>
        <button type="submit" disabled={draft === null || set.isPending}>
          Set
        </button>
        <button type="button" disabled={set.isPending} onClick={() => set.mutate(null)}>
          All
        </button>
      </div>
      {set.error !== null && <ErrorNotice error={set.error} />}
    </form>
  );
}
