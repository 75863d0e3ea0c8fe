// The SAEs of a repository by layer and width: the counts of a table, and the SAEs of one of its cells.

export interface Unit {
  path: string;
  layer: number | null;
  width: string | null;
}
export interface UnitTable {
  /** Null stands for SAEs whose names do not say. */
  layers: (number | null)[];
  widths: (string | null)[];
  count(layer: number | null, width: string | null): number;
}
/** A layer or a width that was chosen: its text, `-` for SAEs whose names do not say, empty for all. */
export interface Choice {
  layer: string;
  width: string;
  words: string;
}

export const UNSAID = "-";

export function unitTable(units: readonly Unit[]): UnitTable {
  const counts = new Map<string, number>();
  for (const { layer, width } of units) counts.set(`${layer}/${width}`, (counts.get(`${layer}/${width}`) ?? 0) + 1);
  return {
    layers: [...new Set(units.map(({ layer }) => layer))].sort((a, b) => (a ?? Infinity) - (b ?? Infinity)),
    widths: [...new Set(units.map(({ width }) => width))].sort((a, b) => size(a) - size(b)),
    count: (layer, width) => counts.get(`${layer}/${width}`) ?? 0,
  };
}

/** The SAEs of a choice, with all of the words in their paths. */
export function chosen<T extends Unit>(units: readonly T[], { layer, width, words }: Choice): T[] {
  const parts = words.toLowerCase().split(/\s+/).filter((part) => part !== "");
  return units.filter(
    (unit) =>
      (layer === "" || layer === written(unit.layer)) &&
      (width === "" || width === written(unit.width)) &&
      parts.every((part) => unit.path.toLowerCase().includes(part)),
  );
}

export function written(part: number | string | null): string {
  return part === null ? UNSAID : String(part);
}

/** The number that a short width such as `16k` or `1m` stands for. */
function size(width: string | null): number {
  if (width === null) return Infinity;
  const [, digits = "", unit = ""] = /^([\d.]+)\s*([km]?)/i.exec(width) ?? [];
  return digits === "" ? Infinity : Number(digits) * ({ k: 1e3, m: 1e6 }[unit.toLowerCase()] ?? 1);
}
