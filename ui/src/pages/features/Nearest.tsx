// The features whose decoder directions are nearest.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { nearest } from "../../api/features";
import { Bars } from "../../parts/Bars";
import { exampleBeneath } from "../../parts/Example";
import { QueryPanel } from "../../parts/Panel";
import { decimal } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";

const SHOWN = 12;

export function Nearest({ sae, index, layer }: { sae: string; index: number; layer: number | null }) {
  const query = useQuery(nearest(sae, index, SHOWN));
  return (
    <QueryPanel
      title="Nearest directions"
      query={query}
      about="The cosine of its decoder direction with that of this feature. 1 is the same direction."
      isEmpty={({ features }) => features.length === 0}
      empty="This SAE has no other feature."
    >
      {({ features }) => (
        <Bars
          label="Features with the nearest directions"
          format={(value) => decimal(value, 3)}
          bars={features.map((one) => ({
            id: String(one.feature_idx),
            label: (
              <Link
                to={featurePath({ sae, layer, index: one.feature_idx })}
                title={`${placeName(layer, one.feature_idx)} ${one.label ?? ""}`}
              >
                {one.label ?? placeName(layer, one.feature_idx)}
              </Link>
            ),
            value: one.cosine ?? 0,
            beneath: exampleBeneath(one.example),
          }))}
        />
      )}
    </QueryPanel>
  );
}
