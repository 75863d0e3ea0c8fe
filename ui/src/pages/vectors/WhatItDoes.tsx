// What a vector does when it is added at one layer: where it acts best, how strong, and what that costs.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { describedMeasurement, measureVector, type MeasureBody, type Vector } from "../../api/vectors";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Panel } from "../../parts/Panel";
import { decimal, percent } from "../../rules/bytes";
import { wordsIn } from "../../rules/effects";
import { signed } from "../../rules/strength";
import { JobRow } from "../jobs/JobRow";
import "../../css/effects.css";

type Measured = NonNullable<Vector["measured"]>;

export function WhatItDoes({ vector }: { vector: Vector }) {
  const { measured, not_measured } = vector;
  return (
    <Panel
      title="What it does"
      about="Texts are written with the vector at one layer after the other, and the model without steering reads them again."
    >
      {measured === null ? (
        <p>It is not measured: {not_measured}. Nobody knows at which layer and how strong it acts.</p>
      ) : (
        <Figures measured={measured} />
      )}
      {vector.operation === "add" && <Measure vector={vector} />}
    </Panel>
  );
}

function Figures({ measured }: { measured: Measured }) {
  const { layers, best, by, tokens, model } = measured;
  const shown = layers.find((one) => one.layer === best?.layer && one.strength === best.strength);
  const effect = (value: number | null) => (by === "words" ? percent(value) : decimal(value));
  return (
    <>
      <p>{saysBest(measured)}</p>
      {shown !== undefined && <blockquote className="sample">{shown.sample}</blockquote>}
      <details>
        <summary>As numbers</summary>
        <div className="scroll-x" tabIndex={0} role="group" aria-label="Figures of each layer and strength">
          <table className="numbers-table">
            <caption className="quiet">
              Texts of up to {tokens} tokens, written by {model}.{" "}
              {by === "words" ? "The effect is the share of the texts with one of the words." : "The effect is in standard deviations of the texts without the vector."}
            </caption>
            <thead>
              <tr>
                <th scope="col">layer</th>
                <th scope="col">strength</th>
                <th scope="col">effect</th>
                <th scope="col">95 % interval</th>
                <th scope="col">nats less likely</th>
                <th scope="col">texts</th>
                <th scope="col">one of them</th>
              </tr>
            </thead>
            <tbody>
              {layers.map((one) => (
                <tr key={`${one.layer} ${one.strength}`}>
                  <th scope="row">
                    {one.layer}
                    {one === shown && <span className="quiet"> best</span>}
                  </th>
                  <td>{signed(one.strength)}</td>
                  <td>{effect(one.effect)}</td>
                  <td>
                    {effect(one.effect_low)} to {effect(one.effect_high)}
                  </td>
                  <td>{decimal(one.damage.nll_over_plain)}</td>
                  <td>{one.texts}</td>
                  <td className="sample">
                    {!one.damage.is_unbroken && <span className="quiet">broken: </span>}
                    {one.sample}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </>
  );
}

/** Where the vector acts best, and whether it does more there than directions of chance. */
function saysBest({ best, works, random, by }: Measured): string {
  if (best === null) return "At every strength that was measured the texts are broken or blank.";
  const place = `Layer ${best.layer} with ${signed(best.strength)} has the largest effect of the texts that are not broken.`;
  const reader = by === "words" ? "its words come" : "its probe reads the concept";
  if (works) return `${place} It works there: ${reader} clearly more often than without it and than with ${random.length} random directions.`;
  return `${place} That is not clearly more than without it and than with ${random.length} random directions.`;
}

function Measure({ vector }: { vector: Vector }) {
  const [written, setWritten] = useState("");
  const [job, setJob] = useState("");
  const client = useQueryClient();
  const words = wordsIn(written);
  const body: MeasureBody = { words };
  const begin = useMutation({ mutationFn: () => measureVector(vector.id, body), onSuccess: setJob });
  return (
    <>
      <form
        className="effects-form"
        onSubmit={(event) => {
          event.preventDefault();
          begin.mutate();
        }}
      >
        <label className="field">
          <span>Words that tell whether it works</span>
          <input type="text" value={written} placeholder="sea, boat" onChange={(event) => setWritten(event.target.value)} />
        </label>
        <button type="submit" disabled={words.length === 0 || begin.isPending}>
          {begin.isPending ? "Sending" : vector.measured === null ? "Measure" : "Measure again"}
        </button>
      </form>
      {begin.error !== null && <ErrorNotice error={begin.error} />}
      {job !== "" && (
        <JobRow
          key={job}
          id={job}
          name="The measurement"
          onDone={() => void client.invalidateQueries({ queryKey: ["vectors"] }).then(() => setJob(""))}
        />
      )}
      {words.length > 0 && <CopyCode sent={describedMeasurement(vector.id, body)} title="This measurement as curl or Python" />}
    </>
  );
}
