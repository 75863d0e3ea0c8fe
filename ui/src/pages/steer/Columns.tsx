// The two answers beside each other, and what differs between them.
import { useDeferredValue, useMemo } from "react";
import { Link } from "react-router";
import { useComparison } from "../../api/comparison";
import type { Phase } from "../../rules/comparison";
import { diff, similarity } from "../../rules/diff";
import { percent } from "../../rules/bytes";
import { steers } from "../../rules/steer";
import { Column } from "./Column";
import { Refused } from "./Refused";
import type { Steer } from "./useSteer";

export function Columns({ steer }: { steer: Steer }) {
  const { state, change, model, place } = steer;
  const comparison = useComparison("steer");
  const plain = comparison?.sides[0];
  const steered = comparison?.sides[1];
  const left = useDeferredValue(plain?.text ?? "");
  const right = useDeferredValue(steered?.text ?? "");
  const stretches = useMemo(() => (state.diff && right !== "" ? diff(left, right) : null), [state.diff, left, right]);
  const same = useMemo(() => (left !== "" && right !== "" ? similarity(left, right) : null), [left, right]);
  const isFailed = comparison?.phase === "failed";
  return (
    <section className="sides-part" aria-label="Answers">
      <div className="row spread">
        <p className="quiet" role="status">
          {saysOf(comparison?.phase, same)}
        </p>
        <label className="switch">
          <input
            type="checkbox"
            role="switch"
            checked={state.diff}
            onChange={(event) => change({ diff: event.target.checked })}
          />
          Mark the words that differ
        </label>
      </div>
      {isFailed && <Refused error={comparison.error} steer={steer} />}
      <div className="sides">
        <Column
          kind="plain"
          steer={steer}
          comparison={comparison}
          side={plain}
          stretches={stretches}
          view={state.left}
          onView={(view) => change({ left: view })}
        >
          {model === null ? <NoModel steer={steer} /> : "The model as it is, without any steering."}
        </Column>
        <Column
          kind="steered"
          steer={steer}
          comparison={comparison}
          side={steered}
          stretches={stretches}
          view={state.right}
          onView={(view) => change({ right: view })}
        >
          {place === null ? <NoSae steer={steer} /> : steeredHint(steer, comparison !== undefined)}
        </Column>
      </div>
    </section>
  );
}

function saysOf(phase: Phase | undefined, same: number | null): string {
  const words = same === null ? "" : ` ${percent(same)} of the words are the same.`;
  switch (phase) {
    case "waiting":
      return "Waiting for the first token.";
    case "running":
      return "Writing.";
    case "done":
      return `Both sides are complete.${words}`;
    case "stopped":
      return `Stopped.${words}`;
    case "failed":
      return "The comparison failed.";
    default:
      return "Both sides are written in one batch, with the same seed.";
  }
}

function steeredHint({ state, live }: Steer, isCompared: boolean) {
  if (steers(state, live.data))
    return "The same model, with the features of this page added while it reads and writes.";
  if (state.for === "live" && live.data?.enabled === false)
    return "Steering is switched off for everyone. Switch it on beside.";
  return isCompared
    ? "Nothing steers. Search a feature by its label, or switch the plain side to Tokens, open a token, and steer with what fires there."
    : "Nothing steers yet. Search a feature by its label, or generate first and see what fires.";
}

function NoModel({ steer }: { steer: Steer }) {
  if (steer.loaded.isPending) return "Loading";
  return (
    <>
      No model is loaded. <Link to="/models">Load a model</Link>, or start the bundled one with{" "}
      <code>steerserve demo</code>.
    </>
  );
}

function NoSae({ steer }: { steer: Steer }) {
  if (steer.attached.isPending) return "Loading";
  return (
    <>
      No SAE is attached, so there are no features to steer with. <Link to="/saes">Attach an SAE</Link>.
    </>
  );
}
