// The newest reading: the features that were active, with a button to pin each.
import { Link } from "react-router";
import { Bars } from "../../parts/Bars";
import { Ago } from "../../parts/Moment";
import { count } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";
import type { Reading } from "../../rules/readings";
import { ExampleOf } from "../features/ExampleOf";

export function Newest({
  reading,
  scale,
  labels,
  place,
  pins,
  hasExamples,
  onPin,
}: {
  reading: Reading | undefined;
  /** The value of a full bar. It is of all shown readings, so that bars of one reading and the next compare. */
  scale: number;
  labels: ReadonlyMap<number, string>;
  place: { sae: string; layer: number | null };
  pins: readonly number[];
  /** Whether a corpus was read of the SAE. */
  hasExamples: boolean;
  onPin: (index: number) => void;
}) {
  if (reading === undefined) {
    return (
      <p className="empty">
        Monitoring is on, and no answer was completed yet. <Link to="/steer">Let the model write.</Link>
      </p>
    );
  }
  return (
    <>
      <p className="quiet reading-line">
        <b>
          <Ago at={reading.at} />
        </b>, position {reading.position} of <code>{reading.request}</code>
        {reading.fired !== null && `, ${count(reading.fired)} features active`}
      </p>
      <Bars
        label="Features at the last token of the newest answer"
        scale={scale}
        bars={reading.top.map(({ index, value, label, weight }) => {
          const name = label ?? labels.get(index);
          const isPinned = pins.includes(index);
          return {
            id: String(index),
            label: (
              <Link to={featurePath({ ...place, index })} title={`${placeName(place.layer, index)} ${name ?? ""}`}>
                {name ?? placeName(place.layer, index)}
              </Link>
            ),
            value,
            rankedBy: weight,
            action: (
              <button
                type="button"
                className="small"
                aria-pressed={isPinned}
                aria-label={`${isPinned ? "pinned" : "pin"}: ${name ?? `feature ${index}`}`}
                onClick={() => onPin(index)}
              >
                {isPinned ? "pinned" : "pin"}
              </button>
            ),
            beneath: hasExamples ? <ExampleOf sae={place.sae} index={index} /> : undefined,
          };
        })}
      />
    </>
  );
}
