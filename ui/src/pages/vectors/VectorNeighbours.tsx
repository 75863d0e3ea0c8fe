// What a vector is near to: features of the attached SAEs, and other vectors.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { neighbours, type Vector } from "../../api/vectors";
import { Bars } from "../../parts/Bars";
import { exampleBeneath } from "../../parts/Example";
import { QueryPanel } from "../../parts/Panel";
import { decimal } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";
import { layersOf } from "../../rules/layers";
import { LayerSelect } from "./LayerSelect";
import "../../css/features.css";

const cosine = (value: number) => decimal(value, 3).replace("-", "−");

export function VectorNeighbours({ vector, onOpen }: { vector: Vector; onOpen: (id: string) => void }) {
  const [layer, setLayer] = useState<number | null>(null);
  const query = useQuery(neighbours(vector.id, layer));
  return (
    <QueryPanel
      title="Near to"
      query={query}
      about="The cosine with decoder directions of attached SAEs and with other vectors. 1 is the same direction, −1 the opposite one."
      actions={
        <LayerSelect
          label="Layer of the vector"
          layers={layersOf(vector)}
          layer={layer}
          all="all layers"
          onChange={setLayer}
        />
      }
      isEmpty={({ features, vectors }) => features.length === 0 && vectors.length === 0}
      empty={
        <p>
          No other vector is stored, and no SAE of this width is attached. <Link to="/saes">Attach an SAE.</Link>
        </p>
      }
    >
      {({ features, vectors }) => (
        <div className="near-lists">
          {features.length > 0 && (
            <div>
              <h3>Features</h3>
              <Bars
                label="Nearest features"
                format={cosine}
                bars={features.map((one) => ({
                  id: `${one.sae_id} ${one.sae_layer} ${one.feature_idx} ${one.layer} ${one.site}`,
                  label: (
                    <Link
                      to={featurePath({ sae: one.sae_id, layer: one.sae_layer, index: one.feature_idx })}
                      title={`${placeName(one.sae_layer, one.feature_idx)} of ${one.sae_id}, with the direction at layer ${one.layer}`}
                    >
                      {one.label ?? placeName(one.sae_layer, one.feature_idx)}
                    </Link>
                  ),
                  value: one.cosine,
                  beneath: exampleBeneath(one.example),
                }))}
              />
            </div>
          )}
          {vectors.length > 0 && (
            <div>
              <h3>Vectors</h3>
              <Bars
                label="Nearest vectors"
                format={cosine}
                bars={vectors.map((one) => ({
                  id: one.vector_id,
                  label: (
                    <button
                      type="button"
                      className="plain-link"
                      title={`At layer ${one.layer}, ${one.site}`}
                      onClick={() => onOpen(one.vector_id)}
                    >
                      {one.name}
                    </button>
                  ),
                  value: one.cosine,
                }))}
              />
            </div>
          )}
        </div>
      )}
    </QueryPanel>
  );
}
