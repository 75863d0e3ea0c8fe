// The dial λ of a profile, a cluster or a circuit, with its declared range marked.
import { useId } from "react";
import { decimal } from "../rules/bytes";
import { MEANS } from "../rules/words";
import { Term } from "./Term";
import { useCommitted } from "./useCommitted";

export function Dial({
  name,
  value,
  range,
  step = 0.01,
  isDisabled = false,
  onCommit,
}: {
  /** What is dialled: the name of the profile, cluster or circuit. */
  name: string;
  value: number;
  /** The declared range, from its document. */
  range: readonly [number, number];
  step?: number;
  isDisabled?: boolean;
  onCommit: (value: number) => Promise<unknown> | void;
}) {
  const { shown, isDraft, isSending, change, flush } = useCommitted(value, onCommit);
  const [least, most] = range;
  const id = useId();
  const jump = (to: number) => {
    change(to);
    void flush();
  };
  const jumps = [
    { to: 0, word: "Off" },
    { to: least, word: "Least" },
    { to: most, word: "Most" },
  ].filter(({ to }, index) => index === 0 || to !== 0);
  return (
    <div className="dial" data-pending={isDraft || isSending || undefined}>
      <span className="dial-name">
        <Term means={MEANS.lambda}>λ</Term>
        <label htmlFor={id} className="only-read">
          Intensity of {name}
        </label>
      </span>
      <output htmlFor={id}>{decimal(shown)}</output>
      <input
        id={id}
        type="range"
        min={Math.min(0, least)}
        max={most}
        step={step}
        disabled={isDisabled}
        value={shown}
        onChange={(event) => change(Number(event.target.value))}
        onPointerUp={() => void flush()}
        onKeyUp={() => void flush()}
      />
      <span className="dial-range" aria-hidden="true">
        <span style={{ marginInlineStart: `${(100 * (least - Math.min(0, least))) / (most - Math.min(0, least))}%` }} />
      </span>
      <span className="row">
        {jumps.map(({ to, word }) => (
          <button
            key={word}
            type="button"
            className="small"
            aria-pressed={shown === to}
            disabled={isDisabled}
            onClick={() => jump(to)}
          >
            {word} {decimal(to)}
          </button>
        ))}
      </span>
    </div>
  );
}
