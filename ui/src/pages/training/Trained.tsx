// How well the directions of a training tell held-out texts, layer by layer, beside directions that learnt nothing.
import { Link } from "react-router";
import type { Probe } from "../../api/probes";
import { Curves } from "../../parts/Curves";
import { Panel } from "../../parts/Panel";
import { count, DASH, decimal } from "../../rules/bytes";
import type { Line } from "../../rules/effects";
import { layersSaid } from "../../rules/layers";
import { featurePath } from "../../rules/places";
import "../../css/effects.css";

type Training = NonNullable<Probe["training"]>;

export function Trained({ training }: { training: Training }) {
  const { positives, negatives, held_out, best_layer, neighbours, layers } = training;
  const best = layers.find(({ layer }) => layer === best_layer);
  const lines = linesOf(layers);
  return (
    <Panel
      title="Training"
      about={`${training.method}, on ${count(positives)} texts with the concept and ${count(negatives)} without it; ${count(held_out)} of them were held out.`}
    >
      {best !== undefined && best.auc_held_out !== null && <p>{saysBest(training, best)}</p>}
      {layers.length > 1 && lines.length > 0 && (
        <Curves
          title="AUC on held-out texts"
          unit="each layer"
          lines={lines}
          mark={best_layer === null ? null : { place: best_layer, name: `layer ${best_layer}` }}
        />
      )}
      <details open={layers.length === 1 || lines.length === 0}>
        <summary>As numbers</summary>
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
              {layers.map((one) => (
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
                  <td>{shuffled(one)}</td>
                  <td>{decimal(one.auc_random)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
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

type Layer = Training["layers"][number];

/** The mean over the shuffles and the largest of them; a record of one shuffle has one number. */
function shuffled({ auc_shuffled, auc_shuffled_most }: Layer): string {
  const most = auc_shuffled_most ?? null;
  return most === null ? decimal(auc_shuffled) : `${decimal(auc_shuffled)}, at most ${decimal(most)}`;
}

function linesOf(layers: readonly Layer[]): Line[] {
  const line = (name: string, value: (one: Layer) => number | null): Line => ({
    name,
    points: layers.map((one) => [one.layer, value(one)]),
  });
  const all = [
    line("the direction", (one) => one.auc_held_out),
    line("best of the shuffled labels", (one) => one.auc_shuffled_most ?? one.auc_shuffled),
    line("random directions", (one) => one.auc_random),
  ];
  return all.filter(({ points }) => points.some(([, value]) => value !== null));
}

/** How good the best layer is, and which layers the texts cannot tell from it. */
function saysBest({ equal_layers = [] }: Training, best: Layer): string {
  const interval =
    best.auc_low === null || best.auc_high === null ? "" : ` (95 % interval ${decimal(best.auc_low)} to ${decimal(best.auc_high)})`;
  const words = `Layer ${best.layer} has the AUC ${decimal(best.auc_held_out)}${interval}.`;
  const others = equal_layers.filter((layer) => layer !== best.layer);
  if (others.length === 0) return words;
  const said = layersSaid(others);
  return `${words} These texts cannot tell it from ${said}.`;
}
