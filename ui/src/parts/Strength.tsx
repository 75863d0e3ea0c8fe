// A steering strength: a slider on which small strengths get most of the travel, and a box for the exact number.
import { useId, useState, type CSSProperties } from "react";
import { LIMIT, next, position, POSITIONS, signed, strength } from "../rules/strength";
import { useCommitted } from "./useCommitted";

export function Strength({
  label,
  value,
  limit = LIMIT,
  isDisabled = false,
  onCommit,
}: {
  /** What is set, for screen readers: `Strength of sea`. */
  label: string;
  value: number;
  limit?: number;
  isDisabled?: boolean;
  onCommit: (value: number) => Promise<unknown> | void;
}) {
  const { shown, isDraft, isSending, change, flush } = useCommitted(value, onCommit);
  const marks = useId();
  const step = (direction: 1 | -1) => change(next(shown, direction, limit));
  return (
    <div className="strength" data-pending={isDraft || isSending || undefined}>
      <input
        type="range"
        aria-label={label}
        aria-valuetext={signed(shown)}
        min={-POSITIONS}
        max={POSITIONS}
        step="any"
        list={marks}
        disabled={isDisabled}
        value={position(shown, limit)}
        style={{ "--at": `${50 + (50 * position(shown, limit)) / POSITIONS}%` } as CSSProperties}
        onChange={(event) => change(strength(Number(event.target.value), limit))}
        onPointerUp={() => void flush()}
        onKeyUp={() => void flush()}
        onKeyDown={(event) => {
          const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
          if (direction === undefined) return;
          event.preventDefault();
          step(direction as 1 | -1);
        }}
      />
      <datalist id={marks}>
        <option value={0} label="0" />
      </datalist>
      <Exact label={`${label}, exact`} value={shown} limit={limit} isDisabled={isDisabled} onCommit={change} />
    </div>
  );
}

/** A box for a number, which is sent with Enter or when the box is left. */
function Exact({
  label,
  value,
  limit,
  isDisabled,
  onCommit,
}: {
  label: string;
  value: number;
  limit: number;
  isDisabled: boolean;
  onCommit: (value: number) => void;
}) {
  const [draft, setDraft] = useState<string | null>(null);
  const number = Number(draft);
  const isWrong = draft !== null && (draft.trim() === "" || !(Math.abs(number) <= limit));
  const send = () => {
    if (draft !== null && !isWrong && number !== value) onCommit(number);
    setDraft(null);
  };
  return (
    <input
      type="number"
      className="exact"
      inputMode="decimal"
      aria-label={label}
      aria-invalid={isWrong || undefined}
      title={`From −${limit} to ${limit}`}
      min={-limit}
      max={limit}
      step="any"
      disabled={isDisabled}
      value={draft ?? String(value)}
      onChange={(event) => setDraft(event.target.value)}
      onBlur={send}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) send();
        if (event.key === "Escape") setDraft(null);
      }}
    />
  );
}
