// A box for a number with its name. It takes effect with Enter or when the box is left; a wrong number goes back.
import { useId, useState } from "react";

export function NumberField({
  label,
  value,
  least,
  most,
  step = 1,
  title,
  onCommit,
}: {
  label: string;
  value: number;
  least: number;
  most: number;
  step?: number;
  title?: string;
  onCommit: (value: number) => void;
}) {
  const id = useId();
  const [draft, setDraft] = useState<string | null>(null);
  const number = Number(draft);
  const isWhole = step < 1 || Number.isInteger(number);
  const isWrong = draft !== null && (draft.trim() === "" || !(number >= least && number <= most) || !isWhole);
  const send = () => {
    if (draft !== null && !isWrong && number !== value) onCommit(number);
    setDraft(null);
  };
  return (
    <span className="number-field">
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        type="number"
        inputMode="decimal"
        title={title ?? `From ${least} to ${most}`}
        aria-invalid={isWrong || undefined}
        min={least}
        max={most}
        step={step}
        value={draft ?? String(value)}
        onChange={(event) => setDraft(event.target.value)}
        onBlur={send}
        onKeyDown={(event) => {
          if (event.key === "Enter") send();
          if (event.key === "Escape") setDraft(null);
        }}
      />
    </span>
  );
}
