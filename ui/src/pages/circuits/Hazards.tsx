// Edges between steered features, with the words of the service for what they do to each other.
import type { CircuitDetail } from "../../api/documents";
import { Panel } from "../../parts/Panel";
import { signed } from "../../rules/strength";

export function Hazards({ hazards }: { hazards: CircuitDetail["hazards"] }) {
  return (
    <Panel title="Hazards" about="Steered features of different layers that an edge joins. Hazards change no value.">
      <ul className="lines">
        {hazards.map(({ kind, edge_key, up, down, label }) => (
          <li key={edge_key}>
            <span className="strong">{kind}</span>
            <span className="says">
              <End end={up} /> <span aria-hidden="true">→</span>
              <span className="only-read"> to </span> <End end={down} />
            </span>
            <span className="quiet">{label}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function End({ end }: { end: CircuitDetail["hazards"][number]["up"] }) {
  return (
    <>
      <span className="place">
        {end.layer}:{end.feature_idx ?? "cluster"}
      </span>{" "}
      {signed(end.value)}
    </>
  );
}
