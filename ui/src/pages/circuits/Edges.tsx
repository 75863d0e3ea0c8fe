// The edges of a circuit as a drawing and as a table, and the switch of their sensing.
import { useState } from "react";
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { saeAt, type CircuitDetail } from "../../api/documents";
import { circuitSensing, edgeFirings } from "../../api/sensing";
import { EdgeGraph } from "../../parts/EdgeGraph";
import { Ago } from "../../parts/Moment";
import { notify } from "../../parts/Notices";
import { PlaceLink } from "../../parts/PlaceLink";
import { Rung } from "../../parts/Rung";
import { DASH } from "../../rules/bytes";
import { useAction } from "../documents/actions";
import { useFired } from "./useFired";

export function Edges({ circuit }: { circuit: CircuitDetail }) {
  const lit = useFired(circuit.id);
  const [pointed, setPointed] = useState<string | null>(null);
  const names = new Map(circuit.members.map(({ layer, feature_idx, label }) => [`${feature_idx}@${layer}`, label]));
  return (
    <>
      <EdgeGraph members={circuit.members} edges={circuit.edges} lit={lit} pointed={pointed} />
      <Legend edges={circuit.edges} />
      <SensingSwitch circuit={circuit} />
      <EdgeTable circuit={circuit} names={names} lit={lit} onPoint={setPointed} />
    </>
  );
}

/** Each rung that an edge has, with its line and the phrase of the service. */
function Legend({ edges }: { edges: CircuitDetail["edges"] }) {
  const rungs = new Map(edges.map(({ rung, rung_language }) => [rung, rung_language]));
  return (
    <ul className="legend">
      {[...rungs].sort().map(([rung, phrase]) => (
        <li key={rung} className="row">
          <svg className="graph-edge" data-rung={rung} width="36" height="8" aria-hidden="true">
            <path className="line" d="M 0 4 H 36" />
          </svg>
          {phrase}
        </li>
      ))}
    </ul>
  );
}

function SensingSwitch({ circuit }: { circuit: CircuitDetail }) {
  const status = useQuery(circuitSensing).data;
  const armed = status?.circuits.find((one) => one.circuit_id === circuit.id);
  const path = { circuit_id: circuit.id };
  const change = useAction(
    (isOn: boolean) =>
      isOn
        ? request("post", "/api/circuit-sensing/{circuit_id}/enable", { path })
        : request("post", "/api/circuit-sensing/{circuit_id}/disable", { path }),
    { onSuccess: ({ message }) => notify(message) },
  );
  return (
    <div className="row spread">
      <label className="switch">
        <input
          type="checkbox"
          role="switch"
          checked={circuit.sensing_enabled}
          disabled={change.isPending}
          onChange={(event) => change.mutate(event.target.checked)}
        />
        Sense its edges
      </label>
      <span className="quiet">
        {armed !== undefined
          ? `armed, ${armed.sensable_edges} of ${circuit.edge_count} edges can be observed`
          : circuit.sensing_enabled
            ? (status?.paused_reason ?? "enabled; armed while the circuit serves")
            : "not enabled"}
      </span>
    </div>
  );
}

function EdgeTable({
  circuit,
  names,
  lit,
  onPoint,
}: {
  circuit: CircuitDetail;
  names: ReadonlyMap<string, string | null>;
  lit: ReadonlySet<string>;
  onPoint: (key: string | null) => void;
}) {
  const fired = useQuery(edgeFirings(circuit.id)).data?.events ?? [];
  const unsensable = useQuery(circuitSensing).data?.unsensable_edges ?? [];
  const end = ({ layer, feature_idx }: CircuitDetail["edges"][number]["up"]) => (
    <>
      {names.get(`${feature_idx}@${layer}`) ?? (feature_idx === null ? "whole cluster" : "no label")}{" "}
      {feature_idx === null ? (
        <span className="place">layer {layer}</span>
      ) : (
        <PlaceLink sae={saeAt(circuit, layer)} layer={layer} index={feature_idx} />
      )}
    </>
  );
  return (
    <table className="edges">
      <caption className="only-read">Table of edges</caption>
      <thead>
        <tr>
          <th scope="col">edge and its evidence</th>
          <th scope="col">effect size</th>
          <th scope="col">last fired</th>
        </tr>
      </thead>
      <tbody>
        {circuit.edges.map((edge) => {
          const last = fired.find((event) => event.edge_key === edge.edge_key);
          const why = unsensable.find((one) => one.edge_key === edge.edge_key);
          return (
            <tr
              key={edge.edge_key}
              data-lit={lit.has(edge.edge_key) || undefined}
              onPointerEnter={() => onPoint(edge.edge_key)}
              onPointerLeave={() => onPoint(null)}
            >
              <th scope="row">
                {end(edge.up)} <span aria-hidden="true">→</span>
                <span className="only-read"> to </span> {end(edge.down)}
                <br />
                <Rung rung={edge.rung} phrase={edge.rung_language} />
                {why !== undefined && <p className="quiet">{why.detail}</p>}
              </th>
              <td>{edge.effect_size ?? DASH}</td>
              <td>
                {lit.has(edge.edge_key) ? (
                  <b>now</b>
                ) : last !== undefined ? (
                  <Link to={`/sensing?kind=circuit&of=${circuit.id}&event=circuit-${last.id}`}><Ago at={last.created_at} /></Link>
                ) : (
                  DASH
                )}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
