// The features of this page by their SAEs. They stand in the link, and travel with each request.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { labels } from "../../api/documents";
import { FeatureRow } from "../../parts/FeatureRow";
import { bySae, isSame, keyOf, placeOf, set, type Chosen, type Place } from "../../rules/steer";
import { Near } from "./Near";
import type { Steer } from "./useSteer";

type OnNear = (place: Place, index: number, name: string) => void;

export function PageRows({ steer, onNear }: { steer: Steer; onNear: OnNear }) {
  const groups = [...bySae(steer.state.f ?? [])];
  const isAlone = groups.length === 1 && steer.place !== null && groups[0]?.[0] === keyOf(steer.place);
  if (groups.length === 0) {
    return (
      <p className="empty">
        {steer.isEdited ? "No feature is turned up or down." : "Nothing steers yet."} Search a feature by its label, or open a
        token and steer with what fires there.
      </p>
    );
  }
  return groups.map(([sae, features]) => {
    const place = placeOf(sae);
    if (place === null) return null;
    return (
      <section key={sae} className="feature-group" aria-label={`Features of ${placeWords(place)}`}>
        {!isAlone && <h3>{placeWords(place)}</h3>}
        <Rows steer={steer} place={place} features={features} onNear={onNear} />
      </section>
    );
  });
}

function placeWords({ sae_id, layer }: Place): string {
  return `layer ${layer}, ${sae_id}`;
}

function Rows({
  steer: { state, setFeatures },
  place,
  features,
  onNear,
}: {
  steer: Steer;
  place: Place;
  features: readonly Chosen[];
  onNear: OnNear;
}) {
  const indices = features.map(([index]) => index);
  const known = useQuery({ ...labels(place.sae_id, indices), placeholderData: keepPreviousData }).data;
  const all = state.f ?? [];
  return (
    <ul className="feature-rows">
      {features.map((one) => {
        const [index, value, isOn, sae] = one;
        const label = known?.get(index) ?? null;
        return (
          <FeatureRow
            key={index}
            feature={{ index, label, layer: place.layer, value, isOn: isOn === 1 }}
            place={<Near index={index} place={place} label={label} onNear={onNear} />}
            onValue={(next) => setFeatures(set(all, [index, next, isOn, sae]))}
            onSwitch={(next) => setFeatures(set(all, [index, value, next ? 1 : 0, sae]))}
            onRemove={() => setFeatures(all.filter((other) => !isSame(other, one)))}
          />
        );
      })}
    </ul>
  );
}
