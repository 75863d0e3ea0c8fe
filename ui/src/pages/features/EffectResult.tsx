// The curves of a measurement, its numbers, and two texts of each strength.
import { Link } from "react-router";
import type { EffectRow, Effects } from "../../api/effects";
import { Curves } from "../../parts/Curves";
import { decimal, percent } from "../../rules/bytes";
import { advice } from "../../rules/effects";
import { steerPath, type FeaturePlace } from "../../rules/places";

/** The feature that was measured; null for another lever. */
type Measurable = (FeaturePlace & { layer: number }) | null;
const LEVEL = { value: 1, name: "1 nat" };

export function EffectResult({ found, place }: { found: Effects; place: Measurable }) {
  const { rows, random, plain, calibrated, suggested, target } = found;
  const line = (name: string, of: readonly EffectRow[], value: (row: EffectRow) => number | null) => ({
    name,
    points: [plain, ...of].map((row) => [row.strength, value(row)] as const),
  });
  const strength = calibrated.strength;
  const { said, strength: advised } = advice(found);
  const largest = suggested.unit_max;
  return (
    <div className="effects-result">
      <p>
        {said} {advised !== null && <Share found={found} strength={advised} />}
        {advised !== null && <SteerAt place={place} strength={advised} />}
      </p>
      {typeof largest === "number" && (
        <p className="quiet">
          The largest activation of this feature that was seen is {decimal(largest, 1)}.
        </p>
      )}
      <div className="columns">
        <Curves
          title="KL to the plain model, 95 % quantile"
          unit="nats"
          lines={[
            line(place === null ? "this lever" : "this feature", rows, (row) => row.kl_p95),
            ...(random.length > 0 ? [line("random directions", random, (row) => row.kl_p95)] : []),
          ]}
          level={LEVEL}
          mark={strength === null ? null : { place: strength, name: `1 nat at ${decimal(strength, 1)}` }}
        />
        {target !== null && (
          <Curves
            title="Log-probability that a word begins"
            unit="nats"
            lines={[
              line("words to look for", rows, (row) => row.target_logprob),
              ...(target.control.length > 0 ? [line("words to compare", rows, (row) => row.control_logprob)] : []),
              ...(random.length > 0 ? [line("random directions", random, (row) => row.target_logprob)] : []),
            ]}
          />
        )}
      </div>
      <Numbers rows={[plain, ...rows]} hasWords={target !== null} />
      <details>
        <summary>Two texts of each strength</summary>
        <dl className="effects-samples">
          {[plain, ...rows].map((row) => (
            <div key={row.strength}>
              <dt className="quiet">{row.strength === 0 ? "without steering" : `strength ${row.strength}`}</dt>
              {row.samples.map((sample, at) => (
                <dd key={at}>{sample}</dd>
              ))}
            </div>
          ))}
        </dl>
      </details>
    </div>
  );
}

/** How many texts have the words at a strength of the ladder. */
function Share({ found: { rows, plain }, strength }: { found: Effects; strength: number }) {
  const share = rows.find((row) => row.strength === strength)?.share_with_words ?? null;
  if (share === null) return null;
  return (
    <>
      At {decimal(strength, 1)} {percent(share)} of the texts have the words, without steering {percent(plain.share_with_words)}.{" "}
    </>
  );
}

function SteerAt({ place, strength }: { place: Measurable; strength: number }) {
  if (place === null) return null;
  return (
    <Link className="button" to={steerPath(place.sae, place.layer, place.index, strength)}>
      Steer at {decimal(Math.round(strength * 2) / 2, 1)}
    </Link>
  );
}

function Numbers({ rows, hasWords }: { rows: readonly EffectRow[]; hasWords: boolean }) {
  return (
    <div className="scroll-x" role="group" aria-label="Figures of each strength" tabIndex={0}>
      <table className="numbers-table">
        <thead>
          <tr>
            <th scope="col">strength</th>
            <th scope="col">KL, median</th>
            <th scope="col">KL, 95 %</th>
            <th scope="col">nats per token, plain</th>
            <th scope="col">repeated</th>
            {hasWords && <th scope="col">texts with the words</th>}
            {hasWords && <th scope="col">works</th>}
            <th scope="col">unbroken</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.strength}>
              <th scope="row">{row.strength}</th>
              <td>{decimal(row.kl_median, 3)}</td>
              <td>{decimal(row.kl_p95, 3)}</td>
              <td>{decimal(row.nll_under_plain)}</td>
              <td>{percent(row.repetition)}</td>
              {hasWords && <td>{percent(row.share_with_words)}</td>}
              {hasWords && <td>{mark(row.works)}</td>}
              <td>{mark(row.damage?.is_unbroken)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function mark(is: boolean | null | undefined): string {
  return is === true ? "yes" : is === false ? "no" : "";
}
