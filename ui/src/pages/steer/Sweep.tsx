// The same prompt at several intensities, as small multiples: how the text changes as the steering grows.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { comparing, useComparison, useRun } from "../../api/comparison";
import { likelihoods } from "../../api/likelihood";
import { Dialog } from "../../parts/Dialog";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { OtherSettings } from "../../parts/OtherSettings";
import { added, isWhole, type Comparison, type Side } from "../../rules/comparison";
import { diff, isWorthMarking, marked, similarity } from "../../rules/diff";
import { DASH, decimal, percent } from "../../rules/bytes";
import { repetition } from "../../rules/repetition";
import { signed } from "../../rules/strength";
import { steers } from "../../rules/steer";
import { intensities } from "../../rules/typed";
import type { Steer } from "./useSteer";

export function Sweep({ steer }: { steer: Steer }) {
  const { state, change, bodyOf, askedOf, canRun, live, place, isEdited, isLiveEdited } = steer;
  const comparison = useComparison("sweep");
  const { run, stop, isRunning } = useRun("sweep");
  const [draft, setDraft] = useState<string | null>(null);
  const written = draft ?? state.sweep.join(", ");
  const asked = intensities(written);
  const hasEdits = isEdited || isLiveEdited;
  const isSteered = hasEdits || steers(state, live.data, place);
  const start = () => {
    if (asked === null) return;
    change({ sweep: asked });
    setDraft(null);
    void run(comparing(bodyOf(state, asked)), askedOf(state, asked));
  };
  const first = comparison?.sides.find(({ intensity }) => intensity === 0);
  const likely = useQuery(likelihoodsOf(comparison)).data;
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
        {hasEdits
          ? "All that is added times λ, and every other edit λ of its way, in one batch with the same seed. "
          : "All values times λ, in one batch with the same seed. "}
        {!isSteered && "Add a feature first. "}
        {likely !== undefined &&
          "The plain likelihood is the mean log-probability of a token for the model without steering: nearer to 0 is likelier. "}
        <OtherSettings comparison={comparison} now={askedOf(state, asked ?? state.sweep)} />
      </p>
      {comparison?.phase === "failed" && <ErrorNotice error={comparison.error} onRetry={start} />}
      {comparison !== undefined && comparison.sides.length > 0 && (
        <ol className="multiples" data-waiting={comparison.phase === "waiting" || undefined}>
          {comparison.sides.map((side, at) => (
            <Multiple
              key={side.intensity}
              side={side}
              plain={first}
              isEdited={comparison.asked["interventions"] !== undefined}
              likelihood={likely?.[at] ?? null}
            />
          ))}
        </ol>
      )}
    </section>
  );
}

/** The question how likely the texts of a complete sweep are without steering. */
function likelihoodsOf(comparison: Comparison | undefined) {
  const isReady = comparison !== undefined && comparison.phase === "done" && isWhole(comparison);
  if (!isReady) return likelihoods(null, [], []);
  const { model, promptTokens, sides } = comparison;
  const prompt = sides[0]?.tokens.filter(({ position }) => position < (promptTokens ?? 0)) ?? [];
  return likelihoods(
    model,
    prompt.map(({ text }) => text),
    sides.map(({ text }) => text),
  );
}

function Multiple({
  side,
  plain,
  isEdited,
  likelihood,
}: {
  side: Side;
  plain: Side | undefined;
  /** Whether it was asked for with edits, which are no values of features. */
  isEdited: boolean;
  /** The mean log-probability of its tokens without steering; null where it is not known. */
  likelihood: number | null;
}) {
  const [isOpen, setOpen] = useState(false);
  const isPlain = side === plain;
  const same = plain === undefined || isPlain || side.text === "" ? null : similarity(plain.text, side.text);
  const largest = added(side.steering)[0];
  const edited = isEdited && side.intensity !== 0 ? "edited" : "plain";
  const said = largest === undefined || isEdited ? edited : signed(largest.value);
  const stretches = plain === undefined || isPlain ? null : diff(plain.text, side.text);
  const written =
    stretches === null || !isWorthMarking(stretches)
      ? side.text
      : marked(stretches, "right").map(({ text, differs }, index) =>
          differs ? <mark key={index}>{text}</mark> : <span key={index}>{text}</span>,
        );
  return (
    <li className="multiple" data-plain={isPlain || undefined}>
      <p className="row spread">
        <b>λ {decimal(side.intensity)}</b>
        <span className="quiet">{said}</span>
      </p>
      <p className="multiple-text" tabIndex={0} role="group" aria-label={`The text at intensity ${side.intensity}`}>
        {written}
      </p>
      <p className="quiet multiple-same">
        <span>{same === null ? (isPlain ? "to compare with" : "–") : `${percent(same)} same words`}</span>
        <meter
          aria-label={`Words as at intensity 0, at intensity ${side.intensity}`}
          min={0}
          max={1}
          value={isPlain ? 1 : (same ?? 0)}
        />
      </p>
      <dl className="multiple-figures">
        <div title="The part of the runs of three words that stood in the text before">
          <dt>repetition</dt>
          <dd>{percent(repetition(side.text))}</dd>
        </div>
        <div title="The mean log-probability of its tokens for the model without steering. Nearer to 0 is likelier">
          <dt>plain likelihood</dt>
          <dd>{likelihood === null ? DASH : likelihood.toFixed(2).replace("-", "−")}</dd>
        </div>
      </dl>
      <button
        type="button"
        className="small"
        disabled={side.text === ""}
        aria-label={`Open the text at intensity ${side.intensity}`}
        onClick={() => setOpen(true)}
      >
        Open
      </button>
      <Dialog title={`The text at λ ${decimal(side.intensity)}`} isOpen={isOpen} onClose={() => setOpen(false)}>
        <p className="multiple-whole">{written}</p>
        <button type="button" onClick={() => setOpen(false)}>
          Close
        </button>
      </Dialog>
    </li>
  );
}
