// Layers, and layers in words.

/** The layers of a vector, each once. */
export function layersOf({ layers }: { layers: readonly { layer: number }[] }): number[] {
  return [...new Set(layers.map(({ layer }) => layer))];
}

/** `layer 3`, `layers 8 to 12`, `layers 2, 5, 9`; of many in no row, their number. */
export function layersSaid(layers: readonly number[]): string {
  const sorted = [...new Set(layers)].sort((a, b) => a - b);
  const [first, last] = [sorted[0], sorted.at(-1)];
  if (first === undefined || last === undefined) return "no layer";
  if (sorted.length === 1) return `layer ${first}`;
  if (last - first === sorted.length - 1) return `layers ${first} to ${last}`;
  return sorted.length <= 4 ? `layers ${sorted.join(", ")}` : `${sorted.length} layers from ${first} to ${last}`;
}
