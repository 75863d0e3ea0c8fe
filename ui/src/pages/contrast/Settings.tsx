// How the texts are written and compared.
import { NumberField } from "../../parts/NumberField";
import { Segmented } from "../../parts/Segmented";
import { CONTRAST } from "../../rules/contrast";
import type { State } from "../../rules/link";
import { keyOf, type Place } from "../../rules/steer";

type Link = State<typeof CONTRAST>;
const SPLIT = [
  { value: "lines", label: "A line is a text" },
  { value: "blocks", label: "An empty line ends a text" },
] as const;
const POOL = [
  { value: "max", label: "largest value", title: "The largest value of a feature over the tokens of a text" },
  { value: "mean", label: "mean value", title: "The mean over the tokens of a text" },
  { value: "last", label: "last value", title: "The value at the last token of a text" },
] as const;

export function Settings({
  link,
  places,
  place,
  onChange,
}: {
  link: Link;
  places: readonly Place[];
  place: Place | null;
  onChange: (part: Partial<Link>) => void;
}) {
  return (
    <div className="contrast-settings">
      <Segmented label="What a text is" options={SPLIT} value={link.split} onChange={(split) => onChange({ split })} />
      <Segmented
        label="The value of a feature in a text"
        options={POOL}
        value={link.pool}
        onChange={(pool) => onChange({ pool })}
      />
      {places.length > 1 && place !== null && (
        <label className="number-field">
          SAE
          <select aria-label="SAE" value={keyOf(place)} onChange={(event) => onChange({ sae: event.target.value })}>
            {places.map((entry) => (
              <option key={keyOf(entry)} value={keyOf(entry)}>
                layer {entry.layer}, {entry.sae_id}
              </option>
            ))}
          </select>
        </label>
      )}
      <NumberField label="Features" value={link.top} least={1} most={200} onCommit={(top) => onChange({ top })} />
      <NumberField
        label="Held out"
        title="The part of each group that does not choose the features, from 0 to 0.9"
        value={link.holdout}
        least={0}
        most={0.9}
        step={0.05}
        onCommit={(holdout) => onChange({ holdout })}
      />
      <NumberField
        label="Seed"
        title="It decides which texts are held out"
        value={link.seed}
        least={0}
        most={2 ** 32 - 1}
        onCommit={(seed) => onChange({ seed })}
      />
    </div>
  );
}
