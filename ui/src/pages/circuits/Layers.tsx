// Which SAE serves each layer of a circuit, in the words of the service.
import { Link } from "react-router";
import type { Circuit } from "../../api/documents";
import { Panel } from "../../parts/Panel";

const SIGNS = { bind: ["good", "●"], warn: ["warn", "▲"], block: ["bad", "■"], unbound: ["bad", "○"] } as const;

export function Layers({ layers }: { layers: Circuit["per_sae_warnings"] }) {
  const isMissing = layers.some(({ verdict }) => verdict === "unbound");
  return (
    <Panel title="SAEs of its layers">
      <ul className="lines">
        {layers.map(({ layer, sae_id, verdict, reason }) => {
          const [kind, sign] = SIGNS[verdict];
          return (
            <li key={layer}>
              <span className="strong">layer {layer}</span>
              <span className={`status ${kind}`}>
                <span aria-hidden="true">{sign}</span> {verdict}
              </span>
              <span className="says">
                {sae_id} <span className="quiet">{reason}</span>
              </span>
            </li>
          );
        })}
      </ul>
      {isMissing && (
        <p>
          <Link to="/saes">Attach an SAE at each layer</Link> to serve the circuit whole.
        </p>
      )}
    </Panel>
  );
}
