// The place of a feature in its row, and the way to the features whose directions lie near.
import { Link } from "react-router";
import { featurePath, placeName } from "../../rules/places";
import type { Place } from "../../rules/steer";

export function Near({
  index,
  place,
  label,
  onNear,
}: {
  index: number;
  place: Place;
  label: string | null;
  onNear: (place: Place, index: number, name: string) => void;
}) {
  const name = label ?? `#${index}`;
  return (
    <span className="near">
      <Link
        to={featurePath({ sae: place.sae_id, layer: place.layer, index })}
        title={`Feature ${index} of ${place.sae_id} at layer ${place.layer}`}
      >
        {placeName(place.layer, index)}
      </Link>
      <button type="button" className="link" aria-label={`nearest to ${name}`} onClick={() => onNear(place, index, name)}>
        nearest
      </button>
    </span>
  );
}
