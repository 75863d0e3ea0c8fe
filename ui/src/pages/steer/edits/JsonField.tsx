// A part of an edit as JSON, for what the other fields do not offer.
import { useState } from "react";

export function JsonField<T extends object>({
  label,
  value,
  onChange,
  onWrong,
}: {
  label: string;
  value: T;
  onChange: (value: T) => void;
  /** Says whether the text is no JSON object, so that the form cannot be sent. */
  onWrong: (isWrong: boolean) => void;
}) {
  const [text, setText] = useState(() => JSON.stringify(value));
  const isWrong = objectIn(text) === null;
  return (
    <label className="field">
      {label}
      <textarea
        rows={3}
        spellCheck={false}
        aria-invalid={isWrong || undefined}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          const next = objectIn(event.target.value);
          onWrong(next === null);
          if (next !== null) onChange(next as T);
        }}
      />
      {isWrong && <span className="quiet">This is no JSON object.</span>}
    </label>
  );
}

function objectIn(text: string): object | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
