// Circuit sensing: what is armed, the figures, and a switch for each circuit.
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { circuits } from "../../api/documents";
import { watched } from "../../api/queries";
import { circuitSensing } from "../../api/sensing";
import { notify } from "../../parts/Notices";
import { QueryPanel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { milliseconds } from "../../rules/age";
import { count } from "../../rules/bytes";
import { FactList } from "../documents/FactList";
import { useAction } from "../documents/actions";
import { Intents } from "./Intents";

export function CircuitState() {
  const status = useQuery(watched(circuitSensing));
  const all = useQuery(circuits).data?.circuits ?? [];
  const change = useAction(
    ({ id, isOn }: { id: string; isOn: boolean }) =>
      isOn
        ? request("post", "/api/circuit-sensing/{circuit_id}/enable", { path: { circuit_id: id } })
        : request("post", "/api/circuit-sensing/{circuit_id}/disable", { path: { circuit_id: id } }),
    { onSuccess: ({ message }) => notify(message) },
  );
  return (
    <QueryPanel title="Circuit sensing" query={status} about="An enabled circuit is armed while it serves.">
      {(data) => (
        <>
          <Intents
            items={all.map(({ id, name }) => ({
              id,
              name,
              isOn: data.enabled_circuits.some((one) => one.id === id),
              isArmed: data.circuits.some((one) => one.circuit_id === id),
            }))}
            isPending={change.isPending}
            onSwitch={(id, isOn) => change.mutate({ id, isOn })}
            empty={
              <>
                No circuit is imported. <Link to="/circuits">Import one.</Link>
              </>
            }
          />
          {data.paused_reason !== null && <Warnings title="Paused" warnings={[data.paused_reason]} />}
          <Warnings
            title="Edges that cannot be observed"
            warnings={data.unsensable_edges.map(({ edge_key, detail }) => `${edge_key}: ${detail}`)}
          />
          <FactList
            facts={[
              ["Edges observed", count(data.sensable_edges)],
              ["Most tokens apart", count(data.max_token_lag)],
              ["Last overhead", milliseconds(data.last_request_overhead_ms)],
              ["Requests sensed", count(data.requests_sensed)],
              ["Recorded since start", count(data.events_recorded)],
              ["Not sent live", count(data.ws_throttled)],
              ["Thinned layers", data.truncated_layers.length > 0 ? data.truncated_layers.join(", ") : null],
            ]}
          />
        </>
      )}
    </QueryPanel>
  );
}
