// Values that replace what the files of an SAE say. They are needed where the files leave something open.
import type { Overrides } from "../../api/saes";

type Name = keyof Overrides;
const CHOICES = [
  ["activation", "Activation", ["relu", "topk", "abstopk", "groupmax", "jumprelu", "gated"]],
  ["normalisation", "Normalisation", ["none", "layer_norm", "constant_norm_rescale", "expected_average_only_in"]],
  ["subtract_b_dec", "Subtract b_dec before encoding", ["true", "false"]],
  ["is_centred", "Trained on centred activations", ["true", "false"]],
] as const satisfies readonly (readonly [Name, string, readonly string[]])[];
const YES_NO: Record<string, string> = { true: "yes", false: "no" };
const BOXES = [
  ["k", "k of a top-k activation", "number"],
  ["threshold", "Threshold of JumpReLU", "number"],
  ["norm_factor", "Factor of the norm", "number"],
  ["site", "Site or hook name", "text"],
] as const satisfies readonly (readonly [Name, string, string])[];

export function OverrideFields({
  value,
  needs,
  onChange,
}: {
  value: Overrides;
  /** The names of what the files leave open. */
  needs: readonly string[];
  onChange: (value: Overrides) => void;
}) {
  const set = (name: Name, next: string | number | boolean | null) => {
    const { [name]: _, ...rest } = value;
    onChange(next === null ? rest : { ...rest, [name]: next });
  };
  const mark = (name: string) => (needs.includes(name) ? " (needed)" : "");
  return (
    <details open={needs.length > 0}>
      <summary>Values that replace what the files say{needs.length > 0 && `: needed are ${needs.join(", ")}`}</summary>
      <div className="fields">
        {CHOICES.map(([name, label, options]) => (
          <label key={name} className="field">
            {label}
            {mark(name)}
            <select
              value={value[name] === undefined || value[name] === null ? "" : String(value[name])}
              onChange={(event) => set(name, chosen(event.target.value))}
            >
              <option value="">as in the files</option>
              {options.map((option) => (
                <option key={option} value={option}>
                  {YES_NO[option] ?? option}
                </option>
              ))}
            </select>
          </label>
        ))}
        {BOXES.map(([name, label, type]) => (
          <label key={name} className="field">
            {label}
            {mark(name)}
            <input
              type={type}
              step="any"
              spellCheck={false}
              value={value[name] ?? ""}
              placeholder="as in the files"
              onChange={(event) => set(name, entered(event.target.value, type))}
            />
          </label>
        ))}
      </div>
    </details>
  );
}

function chosen(text: string): string | boolean | null {
  if (text === "") return null;
  return { true: true, false: false }[text] ?? text;
}

function entered(text: string, type: "number" | "text"): string | number | null {
  if (text === "") return null;
  return type === "number" ? Number(text) : text;
}
