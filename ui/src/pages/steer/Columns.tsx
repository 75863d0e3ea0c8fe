// The two answers beside each other, and what differs between them.
import { useDeferredValue, useMemo } from "react";
import { Link } from "react-router";
import { useComparison } from "../../api/comparison";
import { useLostSince } from "../../api/reach";
import { OtherSettings } from "../../parts/OtherSettings";
import { isWhole, type Comparison } from "../../rules/comparison";
import { diff, isWorthMarking, similarity } from "../../rules/diff";
import { isConnectionLost } from "../../rules/errors";
import { percent } from "../../rules/bytes";
import { steers } from "../../rules/steer";
import { Column } from "./Column";
import { Refused } from "./Refused";
import type { Steer } from "./useSteer";

export function Columns({ steer }: { steer: Steer }) {
  const { state, change, model, place, attached, askedOf, isEdited } = steer;
  const comparison = useComparison("steer");
  const plain = comparison?.sides[0];
  const steered = comparison?.sides[1];
  const left = useDeferredValue(plain?.text ?? "");
  const right = useDeferredValue(steered?.text ?? "");
  const differing = useMemo(() => (state.diff && right !== "" ? diff(left, right) : null), [state.diff, left, right]);
  const isMarked = useMemo(() => differing !== null && isWorthMarking(differing), [differing]);
  const stretches = isMarked ? differing : null;
  const same = useMemo(() => (left !== "" && right !== "" ? similarity(left, right) : null), [left, right]);
  const isAway = useLostSince() !== null;
  const isFailed = comparison?.phase === "failed";
  const isLost = isFailed && isConnectionLost(comparison.error);
  const isAlone = place === null && !isEdited && attached.data !== undefined && model !== null && steered === undefined;
  return (
    <section className="sides-part" aria-label="Answers">
      <div className="row spread">
        <p className="quiet" role="status">
          {isLost ? lostSays(isAway) : saysOf(comparison, same, isAlone)}{" "}
          {model !== null && <OtherSettings comparison={comparison} now={askedOf(state)} />}
        </p>
        {!isAlone && (
          <label className="switch">
            <input
              type="checkbox"
              role="switch"
              checked={state.diff}
              onChange={(event) => change({ diff: event.target.checked })}
            />
            Mark the words that differ
            {differing !== null && !isMarked && <span className="quiet"> (nearly all do, so none is marked)</span>}
          </label>
        )}
      </div>
      {isFailed && (!isLost || isAway) && <Refused error={comparison.error} steer={steer} />}
      {isAlone && steer.able?.why == null && (
        <p className="side-note quiet">
          No SAE is attached, so nothing steers: the model answers as it is. <Link to="/saes">Attach an SAE</Link> to
          compare it with its steered answer.
        </p>
      )}
      <div className="sides" data-alone={isAlone || undefined}>
        <Column
          kind="plain"
          steer={steer}
          comparison={comparison}
          side={plain}
          stretches={stretches}
          view={state.left}
          onView={(view) => change({ left: view })}
        >
          {plainHint(steer)}
        </Column>
        {!isAlone && (
          <Column
            kind="steered"
            steer={steer}
            comparison={comparison}
            side={steered}
            stretches={stretches}
            view={state.right}
            onView={(view) => change({ right: view })}
          >
            {place === null && !isEdited ? <NoSae steer={steer} /> : steeredHint(steer, comparison !== undefined)}
          </Column>
        )}
      </div>
    </section>
  );
}

function lostSays(isAway: boolean): string {
  const words = "The connection was lost before the text was complete.";
  return isAway ? words : `${words} It is back: generate again.`;
}

function saysOf(comparison: Comparison | undefined, same: number | null, isAlone: boolean): string {
  const words = same === null ? "" : ` ${percent(same)} of the words are the same.`;
  switch (comparison?.phase) {
    case "waiting":
      return "Waiting for the first token.";
    case "running":
      return "Writing.";
    case "done":
      return isAlone ? "The text is complete." : `Both sides are complete.${words}`;
    case "stopped":
      return comparison !== undefined && isWhole(comparison)
        ? "Stopped. The texts are those of the comparison before."
        : "Stopped. The texts are not complete.";
    case "failed":
      return isAlone ? "The request failed." : "The comparison failed.";
    default:
      return isAlone ? "" : "Both sides are written at the same time, with the same seed.";
  }
}

function plainHint(steer: Steer) {
  if (steer.model === null) return <NoModel steer={steer} />;
  return steer.able?.writes === false ? "This model writes no text." : "The model as it is, without any steering.";
}

function steeredHint({ state, live, place, isEdited, isLiveEdited }: Steer, isCompared: boolean) {
  if (isLiveEdited && live.data?.enabled !== false) return "The same model, with what is live for everyone.";
  if (isEdited) return "The same model, with the edits of this page made while it reads and writes.";
  if (steers(state, live.data, place))
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
