// The layers of a vector at which an edit acts.
import { useQuery } from "@tanstack/react-query";
import { vectors } from "../../../api/vectors";
import type { Edit } from "../../../rules/edits";

export function LayersField({
  vector,
  layers,
  onChange,
}: {
  vector: string;
  layers: Edit["layers"];
  onChange: (layers: Edit["layers"]) => void;
}) {
  const all = useQuery(vectors).data?.vectors.find(({ id }) => id === vector)?.layers.map(({ layer }) => layer) ?? [];
  const [first, last] = [Math.min(...all), Math.max(...all)];
  if (all.length < 2) return null;
  const range = layers === undefined ? null : "from" in layers ? layers : { from: Math.min(...layers), to: Math.max(...layers) };
  const end = (name: "from" | "to", words: string) => (
    <label className="field">
      {words}
      <input
        type="number"
        required
        min={first}
        max={last}
        value={range?.[name] ?? ""}
        onChange={({ target }) => onChange({ from: first, to: last, ...range, [name]: Number(target.value) })}
      />
    </label>
  );
  return (
    <div className="field-row">
      <label className="field">
        At which layers
        <select
          value={range === null ? "all" : "some"}
          onChange={({ target }) => onChange(target.value === "all" ? undefined : { from: first, to: last })}
        >
          <option value="all">all {all.length} that it has</option>
          <option value="some">some of them</option>
        </select>
      </label>
      {range !== null && end("from", "From layer")}
      {range !== null && end("to", "To layer")}
    </div>
  );
}
