// The layer and the index of a feature, as a link to its own view where its SAE is known.
import { Link } from "react-router";
import { featurePath, placeName } from "../rules/places";

export function PlaceLink({ sae, layer, index }: { sae: string | null; layer: number | null; index: number }) {
  const name = placeName(layer, index);
  return (
    <span className="place">
      {sae === null ? (
        name
      ) : (
        <Link to={featurePath({ sae, layer, index })} title={`Feature ${index} of ${sae}`}>
          {name}
        </Link>
      )}
    </span>
  );
}
