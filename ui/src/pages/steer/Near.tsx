// The place of a feature in its row, and the way to the features whose directions lie near.
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
  onNear: (index: number, name: string) => void;
}) {
  const name = label ?? `#${index}`;
  return (
    <span className="near">
      <span title={`Feature ${index} of the SAE at layer ${place.layer}`}>
        {place.layer}:{index}
      </span>
      <button type="button" className="link" aria-label={`nearest to ${name}`} onClick={() => onNear(index, name)}>
        nearest
      </button>
    </span>
  );
}
