// A steered feature: its label, its place, its strength, its switch, and the way out of the list.
import type { ReactNode } from "react";
import { placeName } from "../rules/places";
import { Strength } from "./Strength";

export interface SteeredFeature {
  index: number;
  /** Null where the feature has no label. */
  label: string | null;
  layer: number | null;
  value: number;
  isOn: boolean;
}

export function FeatureRow({
  feature,
  place,
  isDisabled = false,
  onValue,
  onSwitch,
  onRemove,
}: {
  feature: SteeredFeature;
  /** The layer and the index, as a link to the page of the feature where that page exists. */
  place?: ReactNode;
  isDisabled?: boolean;
  onValue: (value: number) => Promise<unknown> | void;
  onSwitch: (isOn: boolean) => void;
  onRemove: () => void;
}) {
  const name = feature.label ?? `feature ${feature.index}`;
  return (
    <li className="feature-row" data-off={!feature.isOn || undefined}>
      <div className="feature-name">
        <span className={feature.label === null ? "quiet" : "strong"}>{feature.label ?? "no label"}</span>
        <span className="place">{place ?? placeName(feature.layer, feature.index)}</span>
      </div>
      <Strength label={`Strength of ${name}`} value={feature.value} isDisabled={isDisabled} onCommit={onValue} />
      <label className="switch">
        <input
          type="checkbox"
          role="switch"
          checked={feature.isOn}
          disabled={isDisabled}
          onChange={(event) => onSwitch(event.target.checked)}
        />
        <span aria-hidden="true">{feature.isOn ? "on" : "off"}</span>
        <span className="only-read">Use {name}</span>
      </label>
      <button type="button" className="small" disabled={isDisabled} aria-label={`Remove ${name}`} onClick={onRemove}>
        ✕
      </button>
    </li>
  );
}
