// The same prompt at several intensities, as small multiples: how the text changes as the steering grows.
import { useState } from "react";
import { useComparison, useRun } from "../../api/comparison";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { added, type Side } from "../../rules/comparison";
import { diff, marked, similarity } from "../../rules/diff";
import { decimal, percent } from "../../rules/bytes";
import { signed } from "../../rules/strength";
import { intensities, steers } from "../../rules/steer";
import type { Steer } from "./useSteer";

export function Sweep({ steer }: { steer: Steer }) {
  const { state, change, bodyOf, canRun, live } = steer;
  const comparison = useComparison("sweep");
  const { run, stop, isRunning } = useRun("sweep");
  const [draft, setDraft] = useState<string | null>(null);
  const written = draft ?? state.sweep.join(", ");
  const asked = intensities(written);
  const isSteered = steers(state, live.data);
  const start = () => {
    if (asked === null) return;
    change({ sweep: asked });
    setDraft(null);
    void run(bodyOf(state, asked));
  };
  const first = comparison?.sides.find(({ intensity }) => intensity === 0);
  return (
    <section className="panel sweep" aria-label="Intensity sweep">
      <div className="panel-head">
        <h2>Intensity sweep</h2>
        <div className="row">
          <label className="sweep-list">
            <span>λ</span>
            <input
              aria-label="Intensities of the sweep"
              aria-invalid={asked === null || undefined}
              title="1 to 16 numbers from 0 to 2"
              value={written}
              onChange={(event) => setDraft(event.target.value)}
              onBlur={() => asked !== null && change({ sweep: asked })}
              onKeyDown={(event) =>
                event.key === "Enter" && !event.ctrlKey && !event.metaKey && canRun && isSteered && start()
              }
            />
          </label>
          {isRunning ? (
            <button type="button" className="small" onClick={stop}>
              Stop the sweep
            </button>
          ) : (
            <button type="button" className="small" disabled={!canRun || !isSteered || asked === null} onClick={start}>
              Sweep
            </button>
          )}
        </div>
      </div>
      <p className="about">
        All values times λ, in one batch with the same seed. {isSteered ? "" : "Add a feature first."}
      </p>
      {comparison?.phase === "failed" && <ErrorNotice error={comparison.error} onRetry={start} />}
      {comparison !== undefined && comparison.sides.length > 0 && (
        <ol className="multiples" data-waiting={comparison.phase === "waiting" || undefined}>
          {comparison.sides.map((side) => (
            <Multiple key={side.intensity} side={side} plain={first} />
          ))}
        </ol>
      )}
    </section>
  );
}

function Multiple({ side, plain }: { side: Side; plain: Side | undefined }) {
  const isPlain = side === plain;
  const same = plain === undefined || isPlain || side.text === "" ? null : similarity(plain.text, side.text);
  const largest = added(side.steering)[0];
  return (
    <li className="multiple" data-plain={isPlain || undefined}>
      <p className="row spread">
        <b>λ {decimal(side.intensity)}</b>
        <span className="quiet">{largest === undefined ? "plain" : signed(largest.value)}</span>
      </p>
      <p className="multiple-text" tabIndex={0} role="group" aria-label={`The text at intensity ${side.intensity}`}>
        {plain === undefined || isPlain
          ? side.text
          : marked(diff(plain.text, side.text), "right").map(({ text, differs }, index) =>
              differs ? <mark key={index}>{text}</mark> : <span key={index}>{text}</span>,
            )}
      </p>
      <p className="quiet">
        {same === null ? (isPlain ? "to compare with" : "–") : `${percent(same)} same words`}
        <meter
          aria-label={`Words as at intensity 0, at intensity ${side.intensity}`}
          min={0}
          max={1}
          value={isPlain ? 1 : (same ?? 0)}
        />
      </p>
    </li>
  );
}
