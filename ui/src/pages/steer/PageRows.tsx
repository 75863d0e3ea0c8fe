// The features of this page. They stand in the link, and travel with each request.
import { useQueries } from "@tanstack/react-query";
import { feature } from "../../api/steer";
import { FeatureRow } from "../../parts/FeatureRow";
import { set, type Place } from "../../rules/steer";
import { Near } from "./Near";
import type { Steer } from "./useSteer";

export function PageRows({
  steer: { state, setFeatures },
  place,
  onNear,
}: {
  steer: Steer;
  place: Place;
  onNear: (index: number, name: string) => void;
}) {
  const features = state.f ?? [];
  const labels = useQueries({
    queries: features.map(([index]) => feature(place.sae_id, index)),
    combine: (answers) => answers.map(({ data }) => data?.label ?? null),
  });
  if (features.length === 0) {
    return (
      <p className="empty">
        Nothing steers yet. Search a feature by its label, or open a token and steer with what fires there.
      </p>
    );
  }
  return (
    <ul className="feature-rows">
      {features.map(([index, value, isOn], at) => (
        <FeatureRow
          key={index}
          feature={{ index, label: labels[at] ?? null, layer: place.layer, value, isOn: isOn === 1 }}
          place={<Near index={index} place={place} label={labels[at] ?? null} onNear={onNear} />}
          onValue={(next) => setFeatures(set(features, index, next, isOn))}
          onSwitch={(next) => setFeatures(set(features, index, value, next ? 1 : 0))}
          onRemove={() => setFeatures(features.filter(([other]) => other !== index))}
        />
      ))}
    </ul>
  );
}
