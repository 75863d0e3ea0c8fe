// How well the directions of a training tell held-out texts, layer by layer, beside directions that learnt nothing.
import { Link } from "react-router";
import type { Probe } from "../../api/probes";
import { Panel } from "../../parts/Panel";
import { count, DASH, decimal } from "../../rules/bytes";
import { featurePath } from "../../rules/places";

type Training = NonNullable<Probe["training"]>;

export function Trained({ training }: { training: Training }) {
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
