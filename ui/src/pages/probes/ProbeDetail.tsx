// One probe: where it comes from, where it reads, and how well it tells the examples that it was not trained on.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { probes, reading, removeProbe, type Probe } from "../../api/probes";
import { LayerBars } from "../../parts/LayerBars";
import { Clock } from "../../parts/Moment";
import { notify, notifyError } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { layersSaid } from "../../rules/layers";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";
import { Trained } from "../training/Trained";

export function ProbeDetail({ probe, onDeleted }: { probe: Probe; onDeleted: () => void }) {
  const { id, name, layers, source, training } = probe;
  const sites = [...new Set(layers.map(({ site }) => site))];
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () => removeProbe(id),
    onError: notifyError,
    onSuccess: () => {
      notify(`The probe ${name} is deleted.`);
      onDeleted();
    },
    onSettled: () => client.invalidateQueries({ queryKey: probes.queryKey }),
  });
  return (
    <>
      <Panel title={name}>
        <FactList
          facts={[
            ["Made for", probe.model_hint],
            ["Width", probe.width],
            ["Where", `${layersSaid(layers.map(({ layer }) => layer))}, ${sites.join(", ")}`],
            ["From", source.file ?? source.repository_id ?? source.local_path ?? source.kind],
            ["Format", source.format],
            ["Stored", <Clock key="stored" at={probe.created_at} />],
            ["Content", <code key="digest" title={probe.content_digest}>{probe.content_digest.slice(0, 12)}…</code>],
          ]}
        />
        <Warnings warnings={probe.warnings} />
        <LayerBars
          title="Length of the weights at each layer"
          label={`Length of the weights of ${name} at each layer`}
          unit="length"
          bars={layers.map(({ layer, site, norm }) => ({
            name: sites.length === 1 ? String(layer) : `${layer} ${site}`,
            value: norm,
          }))}
        />
        <Foot
          name={name}
          isActive={false}
          isPending={remove.isPending}
          isDeleting={remove.isPending}
          sent={reading(id)}
          sentTitle="Read an answer with it, with curl or Python"
          onDelete={() => remove.mutate()}
        />
      </Panel>
      {training !== null && <Trained training={training} />}
    </>
  );
}
