// How the live values differ from those of a circuit, at the SAE of each of its layers.
import { saeAt, type CircuitDetail } from "../../api/documents";
import { Differences } from "../../parts/Differences";
import { Panel } from "../../parts/Panel";
import { useCompared, useDifferenceLabels } from "../documents/useLive";

export function LiveByLayer({ circuit }: { circuit: CircuitDetail }) {
  return (
    <Panel title="Live values">
      {circuit.layers.map((layer) => (
        <Layer key={layer} circuit={circuit} layer={layer} />
      ))}
    </Panel>
  );
}

function Layer({ circuit, layer }: { circuit: CircuitDetail; layer: number }) {
  const members = circuit.members.filter((member) => member.layer === layer);
  const values = Object.fromEntries(members.map(({ feature_idx, value }) => [feature_idx, value]));
  const own = new Map(members.flatMap(({ feature_idx, label }) => (label === null ? [] : [[feature_idx, label] as const])));
  const saeId = saeAt(circuit, layer);
  const compared = useCompared(values, circuit.intensity, saeId, layer);
  const labels = useDifferenceLabels(compared, own);
  return (
    <section className="flow" aria-label={`Layer ${layer}`}>
      <h3>Layer {layer}</h3>
      {compared === null ? (
        <p className="quiet">No SAE is attached at this layer, so there is nothing to compare.</p>
      ) : (
        <Differences what="this circuit" intensity={circuit.intensity} differences={compared.differences} labels={labels} />
      )}
    </section>
  );
}
