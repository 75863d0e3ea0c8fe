// One choice of a few, as buttons in a row. Natively a group of radio buttons, so arrow keys move the choice.
import { useId } from "react";

export function Segmented<T extends string>({
  label,
  options,
  value,
  onChange,
  isLabelShown = false,
}: {
  label: string;
  options: readonly { value: T; label: string; title?: string }[];
  value: T;
  onChange: (value: T) => void;
  isLabelShown?: boolean;
}) {
  const name = useId();
  return (
    <fieldset className="segmented">
      <legend className={isLabelShown ? "" : "only-read"}>{label}</legend>
      {options.map((option) => (
        <label key={option.value} title={option.title}>
          <input
            type="radio"
            name={name}
            value={option.value}
            checked={option.value === value}
            onChange={() => onChange(option.value)}
          />
          <span>{option.label}</span>
        </label>
      ))}
    </fieldset>
  );
}
