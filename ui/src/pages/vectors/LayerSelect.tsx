// Choosing one layer of a vector. A vector with one layer has no choice.
export function LayerSelect({
  label,
  layers,
  layer,
  all,
  onChange,
}: {
  label: string;
  layers: readonly number[];
  layer: number | null;
  /** The words for all layers, where they may be chosen. */
  all?: string;
  onChange: (layer: number | null) => void;
}) {
  if (layers.length <= 1) return null;
  return (
    <select
      aria-label={label}
      value={layer ?? ""}
      onChange={(event) => onChange(event.target.value === "" ? null : Number(event.target.value))}
    >
      {all !== undefined && <option value="">{all}</option>}
      {layers.map((one) => (
        <option key={one} value={one}>
          layer {one}
        </option>
      ))}
    </select>
  );
}
