// Pinned features over the last answers: the strip chart, and a line for each feature that is also its legend.
import { lazy, Suspense, useMemo, useState } from "react";
import { Link } from "react-router";
import { Panel } from "../../parts/Panel";
import { clock } from "../../rules/age";
import { decimal } from "../../rules/bytes";
import { featurePath, indexIn, placeName } from "../../rules/places";
import type { Reading } from "../../rules/readings";
import { Swatch } from "../../parts/Swatch";
import { SHOWN } from "./useReadings";

const Strip = lazy(() => import("../../parts/Strip"));
/** The most pinned features: as many as there are kinds of lines. */
export const PINS = 6;

export function Pinned({
  readings,
  labels,
  pins,
  place,
  monitored,
  onPin,
}: {
  readings: readonly Reading[];
  labels: ReadonlyMap<number, string>;
  pins: readonly number[];
  place: { sae: string; layer: number | null };
  /** The features that are monitored; empty for all of them. */
  monitored: readonly number[];
  onPin: (index: number) => void;
}) {
  const [at, setAt] = useState<number | null>(null);
  const times = useMemo(() => readings.map((reading) => reading.at), [readings]);
  const lines = useMemo(
    () => pins.map((index) => readings.map((reading) => reading.values.get(index) ?? null)),
    [pins, readings],
  );
  const pointed = at === null ? undefined : readings[at];
  const reading = pointed ?? readings.at(-1);
  return (
    <Panel title="Pinned features" about={`Their values over the last ${SHOWN} answers, a step for each answer.`}>
      {pins.length === 0 ? (
        <p className="empty">Pin a feature with the button beside its bar, or by its index.</p>
      ) : (
        <>
          <Suspense fallback={<div className="strip-chart loading" />}>
            <Strip
              label={`Values of ${pins.length} pinned features over the last ${readings.length} answers`}
              times={times}
              lines={lines}
              slots={SHOWN}
              onPoint={setAt}
            />
          </Suspense>
          <table className="numbers-table pins">
            <caption className="quiet">
              {reading === undefined
                ? "No answer yet"
                : `${pointed === undefined ? "The newest answer" : "The answer"} at ${clock(reading.at, Date.now())}`}
            </caption>
            <tbody>
              {pins.map((index, line) => (
                <tr key={index}>
                  <th scope="row">
                    <Swatch line={line} />{" "}
                    <Link to={featurePath({ ...place, index })}>{labels.get(index) ?? "no label"}</Link>{" "}
                    <span className="place">{placeName(place.layer, index)}</span>
                  </th>
                  <td>
                    {monitored.length > 0 && !monitored.includes(index)
                      ? "not monitored"
                      : decimal(reading?.values.get(index))}
                  </td>
                  <td>
                    <button
                      type="button"
                      className="small"
                      aria-label={`Unpin ${labels.get(index) ?? `feature ${index}`}`}
                      onClick={() => onPin(index)}
                    >
                      ✕
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
      {pins.length < PINS && <Add pins={pins} onPin={onPin} />}
    </Panel>
  );
}

function Add({ pins, onPin }: { pins: readonly number[]; onPin: (index: number) => void }) {
  const [words, setWords] = useState("");
  const index = indexIn(words);
  return (
    <form
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        if (index === null) return;
        if (!pins.includes(index)) onPin(index);
        setWords("");
      }}
    >
      <input
        className="pin-index"
        inputMode="numeric"
        aria-label="Index of a feature to pin"
        aria-invalid={(words !== "" && index === null) || undefined}
        placeholder="index, such as 90"
        value={words}
        onChange={(event) => setWords(event.target.value)}
      />
      <button type="submit" disabled={index === null}>
        Pin it
      </button>
      <Link to="/features">Find a feature</Link>
    </form>
  );
}
