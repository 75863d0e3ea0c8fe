// What the file of a vector or of a probe does not say by itself. The fields count for the next import.
import { CONVENTIONS, type Reading } from "../../api/vectors";

export const UNSAID: Reading = {
  name: "",
  layer: "",
  layer_convention: "",
  layer_offset: "",
  operation: "",
  metadata: null,
};
const MEANINGS: Record<(typeof CONVENTIONS)[number], string> = {
  resid_post: "after block N",
  gguf: "after block N, as llama.cpp counts",
  resid_pre: "before block N",
  hf_hidden_states: "entry N of the hidden states",
};

export function ReadingFields({
  of,
  reading,
  onChange,
}: {
  of: "vector" | "probe";
  reading: Reading;
  onChange: (part: Partial<Reading>) => void;
}) {
  return (
    <>
      <label className="field">
        Name
        <input
          value={reading.name}
          maxLength={100}
          placeholder="that of the file"
          onChange={(event) => onChange({ name: event.target.value })}
        />
      </label>
      <details>
        <summary>What the file does not say</summary>
        <div className="flow">
          <p className="quiet">Most files say all of this. The fields count for the next import.</p>
          <label className="field">
            Layer of a file with one direction
            <input
              type="number"
              min={0}
              max={10_000}
              value={reading.layer}
              onChange={(event) => onChange({ layer: event.target.value })}
            />
          </label>
          <label className="field">
            What layer N of the file means
            <select
              value={reading.layer_convention}
              onChange={(event) => onChange({ layer_convention: event.target.value })}
            >
              <option value="">as the format says</option>
              {CONVENTIONS.map((name) => (
                <option key={name} value={name}>
                  {MEANINGS[name]}
                </option>
              ))}
            </select>
          </label>
          <label className="field">
            Added to every layer
            <input
              type="number"
              min={-10_000}
              max={10_000}
              placeholder="0"
              value={reading.layer_offset}
              onChange={(event) => onChange({ layer_offset: event.target.value })}
            />
          </label>
          {of === "vector" && (
            <label className="field">
              Use
              <select value={reading.operation} onChange={(event) => onChange({ operation: event.target.value })}>
                <option value="">as the file says</option>
                <option value="add">added</option>
                <option value="project">projected out, and never added</option>
              </select>
            </label>
          )}
          <label className="field">
            {of === "vector" ? "The JSON beside a refusal direction" : "The JSON beside the weights"}
            <input
              type="file"
              accept=".json,application/json"
              onChange={(event) => onChange({ metadata: event.target.files?.[0] ?? null })}
            />
          </label>
        </div>
      </details>
    </>
  );
}
