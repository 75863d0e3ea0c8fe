// A box for several texts, with their number.
import { count } from "../rules/bytes";

export function TextBox({
  title,
  value,
  size,
  rows,
  placeholder,
  onChange,
}: {
  title: string;
  value: string;
  /** How many texts there are now. */
  size: number;
  rows: number;
  placeholder?: string;
  onChange: (value: string) => void;
}) {
  return (
    <label className="field">
      <span className="row spread">
        <span>{title}</span>
        <span className="quiet numbers">
          {count(size)} {size === 1 ? "text" : "texts"}
        </span>
      </span>
      <textarea rows={rows} aria-label={title} value={value} placeholder={placeholder} onChange={(event) => onChange(event.target.value)} />
    </label>
  );
}
