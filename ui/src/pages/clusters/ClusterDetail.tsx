// One cluster: activate, dial, members, differences to the live values, what its import remarked, export, edit, delete.
import { useState } from "react";
import { Link } from "react-router";
import { described, request } from "../../api/client";
import { exportCluster, type Cluster } from "../../api/documents";
import { switchSensing } from "../../api/sensing";
import { Dial } from "../../parts/Dial";
import { Members } from "../../parts/Members";
import { Clock } from "../../parts/Moment";
import { notify } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { Active } from "../../parts/Shelf";
import { Warnings } from "../../parts/Warnings";
import { count, decimal } from "../../rules/bytes";
import { Activate } from "../documents/Activate";
import { Edit } from "../documents/Edit";
import { Evidence } from "../documents/Evidence";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";
import { LiveDifference } from "../documents/LiveDifference";
import { useAction, useExport } from "../documents/actions";
import { useLabelled } from "../documents/useLabelled";
import { useCompared } from "../documents/useLive";

export function ClusterDetail({ cluster, onDeleted }: { cluster: Cluster; onDeleted: () => void }) {
  const { id, name } = cluster;
  const path = { cluster_id: id };
  // what the last activation of this page remarked; the service keeps most of it with the cluster
  const [fresh, setFresh] = useState<readonly string[]>([]);
  const values = Object.fromEntries(cluster.members.map(([index, , value]) => [index, value]));
  const compared = useCompared(values, cluster.intensity, cluster.sae_id, cluster.layer);
  const sae = compared?.sae.sae_id ?? null;
  const members = useLabelled(
    cluster.members.map(([index, label, value]) => ({
      ...{ sae: sae ?? cluster.sae_id, layer: cluster.layer },
      ...{ index, label, value },
    })),
  );
  const named = new Map(members.flatMap(({ index, label }) => (label === null ? [] : [[index, label] as const])));
  const sense = useAction((isOn: boolean) => switchSensing(id, isOn));
  const activate = useAction(() => request("post", "/api/clusters/{cluster_id}/activate", { path }), {
    onSuccess: (done) => setFresh(done.warnings),
  });
  const end = useAction(() => request("post", "/api/clusters/{cluster_id}/deactivate", { path }), {
    onSuccess: () => setFresh([]),
  });
  const remove = useAction(() => request("delete", "/api/clusters/{cluster_id}", { path }), {
    onSuccess: () => {
      notify(`The cluster ${name} is deleted.`);
      onDeleted();
    },
  });
  const dial = useAction((intensity: number) =>
    request("put", "/api/clusters/{cluster_id}/intensity", { path, body: { intensity, reapply: true } }),
  );
  const save = useExport("cluster", exportCluster);
  const isPending = activate.isPending || end.isPending || remove.isPending;
  const [least, most] = cluster.dial_range;
  return (
    <>
      <Panel
        title={name}
        actions={
          <>
            {cluster.is_active && <Active />}
            <Activate
              name={name}
              isActive={cluster.is_active}
              isPending={isPending}
              working={activate.isPending ? "Activating" : end.isPending ? "Deactivating" : null}
              onActivate={() => activate.mutate(undefined)}
              onDeactivate={() => end.mutate(undefined)}
            />
          </>
        }
      >
        {cluster.description !== null && <p className="narrative">{cluster.description}</p>}
        <FactList
          facts={[
            ["SAE", cluster.sae_id ?? "not bound; the first activation binds it"],
            ["Layer", cluster.layer],
            ["Model", cluster.model_id],
            ["Word", cluster.display_token],
            ["Budget B", cluster.budget_b === null ? null : decimal(cluster.budget_b)],
            ["Formula", cluster.formula_id],
            ["From the hub", cluster.hub_ref === null ? null : `${cluster.hub_ref.repo_id}, ${cluster.hub_ref.path}`],
            ["Imported", <Clock key="imported" at={cluster.created_at} />],
          ]}
        />
        <Dial name={name} value={cluster.intensity} range={cluster.dial_range} onCommit={(value) => dial.mutateAsync(value)} />
        <p className="quiet">
          {cluster.intensity_range === null
            ? `The document declares no range: the service has ${decimal(least)} to ${decimal(most)}.`
            : `The document declares ${decimal(cluster.intensity_range[0])} to ${decimal(cluster.intensity_range[1])}.`}
          {!cluster.is_active && " The dial is saved, and counts with the next activation."}
        </p>
        <p className="row">
          <label className="switch">
            <input
              type="checkbox"
              role="switch"
              checked={cluster.sensing_enabled}
              disabled={sense.isPending}
              onChange={(event) => sense.mutate(event.target.checked)}
            />
            Sense this cluster
          </label>
          <span className="quiet">
            {cluster.sensing_enabled
              ? "Texts in which its features fire together are recorded while it is active."
              : "Nothing is recorded."}{" "}
            <Link to={`/sensing?kind=cluster&of=${id}`}>Its events</Link>
          </span>
        </p>
        <Warnings warnings={[...new Set([...cluster.warnings, ...fresh])]} />
        <Members
          intensity={cluster.intensity}
          members={members}
        />
        {cluster.member_count > cluster.members.length && (
          <p className="quiet">{count(cluster.member_count - cluster.members.length)} more are in the document.</p>
        )}
        <Foot
          name={name}
          isActive={cluster.is_active}
          isPending={isPending}
          isExporting={save.isPending}
          isDeleting={remove.isPending}
          sent={described("post", "/api/clusters/{cluster_id}/activate", { path })}
          onExport={() => save.mutate({ id, name })}
          onDelete={() => remove.mutate(undefined)}
        >
          <Edit saved={cluster} />
        </Foot>
      </Panel>
      <LiveDifference what={name} intensity={cluster.intensity} compared={compared} labels={named} />
      <Evidence key={id} id={id} name={name} />
    </>
  );
}
