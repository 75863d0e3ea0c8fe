// Sensing: recorded firings of clusters and of edges of circuits, newest first, with the text around them.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { circuits, clusters } from "../api/documents";
import { circuitSensing, clusterSensing, firings } from "../api/sensing";
import { Panel } from "../parts/Panel";
import { Segmented } from "../parts/Segmented";
import { useLink } from "../parts/useLink";
import { choice, text } from "../rules/link";
import { fromKey, keyOf, newestFirst, type Firing } from "../rules/firing";
import { ClearEvents } from "./sensing/ClearEvents";
import { EventDetail } from "./sensing/EventDetail";
import { EventList } from "./sensing/EventList";
import { CircuitState } from "./sensing/CircuitState";
import { ClusterState } from "./sensing/ClusterState";
import "../css/documents.css";
import "../css/sensing.css";

const KINDS = ["all", "cluster", "circuit"] as const;
const LINK = { kind: choice(KINDS), of: text(), event: text() };
const OPTIONS = [
  { value: "all", label: "All" },
  { value: "cluster", label: "Clusters" },
  { value: "circuit", label: "Circuits" },
] as const;
/** The events of each kind that are listed. */
const LISTED = 100;

export default function Sensing() {
  const [{ kind, of, event }, change] = useLink(LINK);
  const named = useNames(kind);
  const ofClusters = useQuery({ ...firings("cluster", kind === "cluster" ? of : "", LISTED), enabled: kind !== "circuit" });
  const ofCircuits = useQuery({ ...firings("circuit", kind === "circuit" ? of : "", LISTED), enabled: kind !== "cluster" });
  const asked = [...(kind === "circuit" ? [] : [ofClusters]), ...(kind === "cluster" ? [] : [ofCircuits])];
  const events = newestFirst(...asked.map((query) => query.data?.events ?? [])).slice(0, LISTED);
  const total = asked.reduce((sum, query) => sum + (query.data?.total ?? 0), 0);
  const failed = asked.find((query) => query.error !== null);
  const first = useFirst(`${kind} ${of}`, asked.every((query) => query.data !== undefined), events);
  const opened = fromKey(event) ?? first;
  const ofCluster = useQuery(clusterSensing).data?.note;
  const note = useQuery(circuitSensing).data?.note ?? ofCluster;
  return (
    <div className="page">
      <header className="page-head">
        <h1>Sensing</h1>
        {note !== undefined && <p className="quiet">{note}</p>}
      </header>
      <div className="row spread">
        <div className="row">
          <Segmented
            label="Events of"
            options={OPTIONS}
            value={kind}
            onChange={(next) => change({ kind: next, of: "", event: "" })}
          />
          {kind !== "all" && (
            <label className="row">
              <span className="only-read">{kind === "cluster" ? "Cluster" : "Circuit"}</span>
              <select value={of} onChange={(input) => change({ of: input.target.value, event: "" })}>
                <option value="">{kind === "cluster" ? "All clusters" : "All circuits"}</option>
                {named.map(({ id, name }) => (
                  <option key={id} value={id}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
        <ClearEvents kind={kind} of={of} name={named.find(({ id }) => id === of)?.name ?? null} total={total} />
      </div>
      <div className="documents sensing">
        <EventList
          query={failed ?? asked[0] ?? ofClusters}
          events={events}
          total={total}
          opened={opened === null ? null : keyOf(opened)}
          onOpen={(key) => change({ event: key })}
        />
        <div className="documents-detail">
          {opened === null ? (
            <Panel title="Event">
              <p className="empty">Enable the sensing of a cluster or a circuit, activate it, and generate text.</p>
            </Panel>
          ) : (
            <EventDetail key={keyOf(opened)} kind={opened.kind} id={opened.id} />
          )}
          <div className="grid">
            {kind !== "circuit" && <ClusterState />}
            {kind !== "cluster" && <CircuitState />}
          </div>
        </div>
      </div>
    </div>
  );
}

/** The event that was the newest when the list was first complete, so that later events do not replace it. */
function useFirst(list: string, isComplete: boolean, events: readonly Firing[]): Firing | null {
  const [first, setFirst] = useState<{ list: string; event: Firing } | null>(null);
  const [newest] = events;
  if (isComplete && newest !== undefined && first?.list !== list) setFirst({ list, event: newest });
  return newest === undefined ? null : first?.list === list ? first.event : newest;
}

/** What the second filter offers. */
function useNames(kind: (typeof KINDS)[number]): readonly { id: string; name: string }[] {
  const ofClusters = useQuery(clusters).data?.clusters ?? [];
  const ofCircuits = useQuery(circuits).data?.circuits ?? [];
  return kind === "cluster" ? ofClusters : kind === "circuit" ? ofCircuits : [];
}
