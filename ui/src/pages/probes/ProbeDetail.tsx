// One probe: where it comes from, where it reads, and how well it tells the examples that it was not trained on.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { probes, reading, removeProbe, type Probe } from "../../api/probes";
import { LayerBars } from "../../parts/LayerBars";
import { Clock } from "../../parts/Moment";
import { notify, notifyError } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { count, DASH, decimal } from "../../rules/bytes";
import { layersSaid } from "../../rules/layers";
import { featurePath } from "../../rules/places";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";

type Training = NonNullable<Probe["training"]>;

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
          sent={reading(id)}
          sentTitle="Read an answer with it, with curl or Python"
          onDelete={() => remove.mutate()}
        />
      </Panel>
      {training !== null && <Trained training={training} />}
    </>
  );
}

function Trained({ training }: { training: Training }) {
  const { positives, negatives, held_out, best_layer, neighbours } = training;
  return (
    <Panel
      title="Training"
      about={`${training.method}, on ${count(positives)} texts with the concept and ${count(negatives)} without it; ${count(held_out)} of them were held out.`}
    >
      <div className="scroll-x" tabIndex={0} role="group" aria-label="Figures of each layer">
        <table className="numbers-table">
          <thead>
            <tr>
              <th scope="col">layer</th>
              <th scope="col">AUC, held out</th>
              <th scope="col">95 % interval</th>
              <th scope="col">labels shuffled</th>
              <th scope="col">random direction</th>
            </tr>
          </thead>
          <tbody>
            {training.layers.map((one) => (
              <tr key={one.layer}>
                <th scope="row">
                  {one.layer}
                  {one.layer === best_layer && <span className="quiet"> best</span>}
                </th>
                <td>{decimal(one.auc_held_out)}</td>
                <td>
                  {one.auc_low === null || one.auc_high === null
                    ? DASH
                    : `${decimal(one.auc_low)} to ${decimal(one.auc_high)}`}
                </td>
                <td>{decimal(one.auc_shuffled)}</td>
                <td>{decimal(one.auc_random)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {neighbours.length > 0 && (
        <>
          <h3>Nearest features</h3>
          <ul className="lines" aria-label="Nearest features">
            {neighbours.map(({ sae_id, index, cosine }) => (
              <li key={`${sae_id} ${index}`}>
                <Link to={featurePath({ sae: sae_id, layer: null, index })}>feature {index}</Link>
                <span className="says place">{sae_id}</span>
                <span className="numbers">{decimal(cosine)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Panel>
  );
}
