// One of the stored vectors.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { vectors } from "../../../api/vectors";
import { Answered } from "../../../parts/Panel";
import { layersSaid } from "../../../rules/layers";

export function VectorField({ label, vector, onChange }: { label: string; vector: string; onChange: (id: string) => void }) {
  const query = useQuery(vectors);
  return (
    <Answered
      query={query}
      isEmpty={({ total }) => total === 0}
      empty={
        <p>
          No vector is stored yet. <Link to="/vectors">Import one.</Link>
        </p>
      }
    >
      {({ vectors: all }) => (
        <label className="field">
          {label}
          <select required value={vector} onChange={(event) => onChange(event.target.value)}>
            {!all.some(({ id }) => id === vector) && <option value={vector}>{vector === "" ? "choose one" : vector}</option>}
            {all.map(({ id, name, layers }) => (
              <option key={id} value={id}>
                {name}, {layersSaid(layers.map(({ layer }) => layer))}
              </option>
            ))}
          </select>
        </label>
      )}
    </Answered>
  );
}
