// The curves of a measurement, its numbers, and two texts of each strength.
import { Link } from "react-router";
import type { EffectRow, Effects } from "../../api/effects";
import { Curves } from "../../parts/Curves";
import { decimal, percent } from "../../rules/bytes";
import { bringing } from "../../rules/effects";
import { steerPath, type FeaturePlace } from "../../rules/places";

/** The feature that was measured; null for another lever. */
type Measurable = (FeaturePlace & { layer: number }) | null;
const LEVEL = { value: 1, name: "1 nat" };

export function EffectResult({ found, place }: { found: Effects; place: Measurable }) {
  const { rows, random, plain, calibrated, target } = found;
  const line = (name: string, of: readonly EffectRow[], value: (row: EffectRow) => number | null) => ({
    name,
    points: [plain, ...of].map((row) => [row.strength, value(row)] as const),
  });
  const strength = calibrated.strength;
  return (
    <div className="effects-result">
      <p>
        {strength === null ? (
          <>The text holds together at all strengths: {calibrated.reason}.</>
        ) : (
          <>
            The text begins to break at <strong>{decimal(strength, 1)}</strong>, where KL reaches 1 nat at one token in
            twenty.{" "}
            <SteerAt place={place} strength={strength} shown={Math.round(strength * 2) / 2} />
          </>
        )}
      </p>
      {target !== null && <Words found={found} place={place} />}
      <div className="columns">
        <Curves
          title="KL to the plain model, 95 % quantile"
          unit="nats"
          lines={[
            line(place === null ? "this lever" : "this feature", rows, (row) => row.kl_p95),
            ...(random.length > 0 ? [line("random directions", random, (row) => row.kl_p95)] : []),
          ]}
          level={LEVEL}
          mark={strength === null ? null : { place: strength, name: `${decimal(strength, 1)}, calibrated` }}
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

function SteerAt({ place, strength, shown }: { place: Measurable; strength: number; shown: number }) {
  if (place === null) return null;
  return (
    <Link className="button" to={steerPath(place.sae, place.layer, place.index, strength)}>
      Steer at {decimal(shown, 1)}
    </Link>
  );
}

/** The strength at which the words that were looked for come. */
function Words({ found: { rows, plain }, place }: { found: Effects; place: Measurable }) {
  const row = bringing(rows);
  if (row === undefined) return <p>At no strength do half of the texts have the words.</p>;
  return (
    <p>
      At <strong>{decimal(row.strength, 1)}</strong> {percent(row.share_with_words)} of the texts have the words, without
      steering {percent(plain.share_with_words)}.{" "}
      <SteerAt place={place} strength={row.strength} shown={row.strength} />
    </p>
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
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
