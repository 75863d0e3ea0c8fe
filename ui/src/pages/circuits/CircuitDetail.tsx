// One circuit: activate, evidence, dial, its edges as a drawing and a table, members, layers, hazards, live values.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { described, request } from "../../api/client";
import { circuit as detailOf, saeAt, exportCircuit, type Circuit } from "../../api/documents";
import { Members } from "../../parts/Members";
import { Clock } from "../../parts/Moment";
import { notify } from "../../parts/Notices";
import { Panel, QueryPanel } from "../../parts/Panel";
import { Rung } from "../../parts/Rung";
import { Active } from "../../parts/Shelf";
import { Warnings } from "../../parts/Warnings";
import { Evidence } from "../documents/Evidence";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";
import { useAction, useExport } from "../documents/actions";
import { useLabelled } from "../documents/useLabelled";
import { CircuitDial } from "./CircuitDial";
import { Edges } from "./Edges";
import { Hazards } from "./Hazards";
import { Layers } from "./Layers";
import { LiveByLayer } from "./LiveByLayer";
import { Serve } from "./Serve";

export function CircuitDetail({
  record,
  isAlone,
  onOpen,
  onDeleted,
}: {
  record: Circuit;
  /** Whether exactly one circuit serves. */
  isAlone: boolean;
  onOpen: (id: string) => void;
  onDeleted: () => void;
}) {
  const { id, name } = record;
  const path = { circuit_id: id };
  const [warnings, setWarnings] = useState<readonly string[]>([]);
  const detail = useQuery(detailOf(id));
  const members = useLabelled(
    (detail.data?.members ?? []).map(({ layer, feature_idx, label, value }) => ({
      ...{ layer, index: feature_idx, label, value },
      sae: saeAt(record, layer),
    })),
  );
  const remove = useAction(() => request("delete", "/api/circuits/{circuit_id}", { path }), {
    onSuccess: () => {
      notify(`The circuit ${name} is deleted.`);
      onDeleted();
    },
  });
  const save = useExport("circuit", exportCircuit);
  return (
    <>
      <Panel
        title={name}
        actions={
          <>
            {record.is_active && <Active />}
            <Serve circuit={record} isBusy={remove.isPending} onWarnings={setWarnings} onOpen={onOpen} />
          </>
        }
      >
        <p className="row">
          <Rung rung={record.rung} phrase={record.rung_language} />
          {record.rung_next_step !== null && <span className="quiet">Next: {record.rung_next_step}</span>}
        </p>
        {record.description !== null && <p className="narrative">{record.description}</p>}
        <FactList
          facts={[
            ["Layers", record.layers.join(", ")],
            ["Served", record.serving_mode?.replaceAll("_", " ")],
            ["Steers now", detail.data?.steering == null ? null : detail.data.steering ? "yes" : "no"],
            ["Shared layers", record.composed_layers.length > 0 ? record.composed_layers.join(", ") : null],
            ["Imported", <Clock key="imported" at={record.created_at} />],
          ]}
        />
        <CircuitDial
          circuit={record}
          range={detail.data?.dial_range ?? [0, 2]}
          isAlone={isAlone}
          onWarnings={setWarnings}
        />
        <Warnings warnings={warnings} />
        <Foot
          name={name}
          isActive={record.is_active}
          isPending={remove.isPending}
          isExporting={save.isPending}
          isDeleting={remove.isPending}
          sent={described("post", "/api/circuits/{circuit_id}/activate", { path })}
          onExport={() => save.mutate({ id, name })}
          onDelete={() => remove.mutate(undefined)}
        />
      </Panel>
      <QueryPanel
        title="Edges"
        query={detail}
        isEmpty={(data) => data.edges.length === 0 && data.members.length === 0}
        empty={<p>The document names no edge.</p>}
        about="Layers from the lowest at the bottom. An edge lights up when it fires, while the circuit is sensed."
      >
        {(data) => (
          <Edges
            circuit={{
              ...data,
              members: data.members.map((one, at) => ({ ...one, label: members[at]?.label ?? one.label })),
            }}
          />
        )}
      </QueryPanel>
      <QueryPanel title="Features" query={detail}>
        {(data) => (
          <Members intensity={data.intensity} members={members} />
        )}
      </QueryPanel>
      {(detail.data?.hazards.length ?? 0) > 0 && <Hazards hazards={detail.data?.hazards ?? []} />}
      <Layers layers={record.per_sae_warnings} />
      <Evidence key={id} id={id} name={name} />
      {detail.data !== undefined && <LiveByLayer circuit={detail.data} />}
    </>
  );
}
