// One firing: the text around it, the features that fired, and what is known about it.
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { circuit, circuits, clusters, saeAt } from "../../api/documents";
import { firing, type Kind } from "../../api/sensing";
import { Clock } from "../../parts/Moment";
import { Panel, QueryPanel } from "../../parts/Panel";
import { PlaceLink } from "../../parts/PlaceLink";
import { Rung } from "../../parts/Rung";
import { SpanText } from "../../parts/SpanText";
import { count, decimal } from "../../rules/bytes";
import { ApiError } from "../../rules/errors";
import type { Firing } from "../../rules/firing";
import { FactList } from "../documents/FactList";
import { useLabelled } from "../documents/useLabelled";

export function EventDetail({ kind, id }: { kind: Kind; id: number }) {
  const query = useQuery(firing(kind, id));
  if (query.error instanceof ApiError && query.error.status === 404) {
    return (
      <Panel title="Event">
        <p className="empty">
          This event is not recorded any more. Old events are deleted when there are too many of them, when they are too old, and
          with their cluster or circuit.
        </p>
      </Panel>
    );
  }
  return (
    <QueryPanel title={kind === "cluster" ? "Members that fired together" : "Edge that fired"} query={query}>
      {(event) => <Detail event={event} />}
    </QueryPanel>
  );
}

function Detail({ event }: { event: Firing }) {
  const name = useName(event);
  const members = useMembers(event);
  return (
    <>
      <SpanText parts={around(event)} />
      {event.parts === null && event.text !== null && (
        <p className="quiet">The span is not marked, because a cut would split a character.</p>
      )}
      <p className="quiet">{event.summary}</p>
      {event.evidence !== null && (
        <p className="row">
          <Rung rung={event.evidence.rung} phrase={event.evidence.phrase} />
          <span className="quiet">evidence of the edge at that moment</span>
        </p>
      )}
      <Features event={event} members={members} />
      {event.isTruncated && (
        <p className="notice notice-warn">This is the last event of its answer: more were not recorded.</p>
      )}
      <FactList
        facts={[
          [event.kind === "cluster" ? "Cluster" : "Circuit", <Link key="of" to={`/${event.kind}s?id=${event.of}`}>{name}</Link>],
          ["Phase", event.phase],
          ["Tokens", event.start === event.end ? count(event.start) : `${count(event.start)} to ${count(event.end)}`],
          ["Tokens apart", event.evidence?.lag ?? null],
          ["Score", event.score === null ? null : decimal(event.score)],
          ["Active in the whole SAE", event.ambient === null ? null : count(event.ambient)],
          ["Request", <code key="request">{event.request}</code>],
          ["Choice", event.choice],
          ["At", <Clock key="at" at={event.at} />],
        ]}
      />
    </>
  );
}

/** The text around a firing, without the blank that a token may begin with. */
function around({ parts, text }: Firing): Firing["parts"] {
  if (parts !== null) return { ...parts, before: parts.before.trimStart() };
  return text === null ? null : { before: text.trimStart(), span: "", after: "" };
}

function Features({ event, members }: { event: Firing; members: readonly SensedMember[] }) {
  return (
    <table className="numbers-table">
      <thead>
        <tr>
          <th scope="col">feature</th>
          {event.kind === "circuit" && <th scope="col">token</th>}
          <th scope="col">{event.kind === "circuit" ? "activation" : "largest activation"}</th>
        </tr>
      </thead>
      <tbody>
        {event.fired.map((one) => {
          const member = members.find(({ layer, index }) => index === one.index && (one.layer === null || layer === one.layer));
          const layer = one.layer ?? member?.layer ?? null;
          return (
            <tr key={`${layer}:${one.index}`}>
              <th scope="row">
                {member?.label ?? <span className="quiet">no label</span>}{" "}
                <PlaceLink sae={member?.sae ?? null} layer={layer} index={one.index} />
              </th>
              {event.kind === "circuit" && <td>{one.position === null ? "–" : count(one.position)}</td>}
              <td>{decimal(one.activation)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function useName({ kind, of }: Firing): string {
  const ofClusters = useQuery(clusters).data?.clusters ?? [];
  const ofCircuits = useQuery(circuits).data?.circuits ?? [];
  return (kind === "cluster" ? ofClusters : ofCircuits).find(({ id }) => id === of)?.name ?? of;
}

interface SensedMember {
  sae: string | null;
  layer: number | null;
  index: number;
  label: string | null;
}

/** The members that the document of the cluster or the circuit has. */
function useMembers({ kind, of }: Firing): readonly SensedMember[] {
  const cluster = useQuery(clusters).data?.clusters.find(({ id }) => id === of);
  const detail = useQuery({ ...circuit(of), enabled: kind === "circuit" }).data;
  return useLabelled([
    ...(cluster?.members.map(([index, label]) => ({ sae: cluster.sae_id, layer: cluster.layer, index, label })) ?? []),
    ...(detail?.members.map(({ layer, feature_idx, label }) => ({
      ...{ layer, index: feature_idx, label },
      sae: saeAt(detail, layer),
    })) ?? []),
  ]);
}
