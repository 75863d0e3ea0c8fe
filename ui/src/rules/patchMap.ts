// The result of a patch sweep as heat maps, and the edit that makes one of its cells.
import { decimal, percent } from "./bytes";
import type { Edit } from "./edits";
import { written } from "./link";
import { pairsIn, textOf, type PatchState } from "./patch";
import { STEER } from "./steer";
import { chipText } from "./tokens";

export interface PatchedCell {
  site: string;
  layer: number;
  /** Absent where all heads, or what has none, are patched. */
  head?: number;
  positions: readonly number[];
  value: number;
  /** 1 where the metric is that of the clean text, 0 where it is that of the corrupt one; null where these are not apart. */
  normalised: number | null;
}
export interface Sweep {
  direction: "denoise" | "noise";
  clean: number;
  corrupt: number;
  noise_floor: number;
  cells: readonly PatchedCell[];
  /** The tokens of the text that is patched. */
  tokens: readonly string[];
}

/** What a cell does: the change of the metric, and which part of the way to the other text that is. */
export interface Effect {
  change: number;
  /** Null where the metric of the texts is not told apart from noise. */
  share: number | null;
  isNoise: boolean;
}

export function effectOf(cell: PatchedCell, { direction, clean, corrupt, noise_floor }: Sweep): Effect {
  const { value, normalised } = cell;
  const change = value - (direction === "denoise" ? corrupt : clean);
  const share = normalised === null ? null : direction === "denoise" ? normalised : 1 - normalised;
  return { change, share, isNoise: Math.abs(change) <= noise_floor };
}

/** The number that a cell shows and that colours it. */
export function shownOf({ share, change }: Effect): number {
  return share ?? change;
}

/** A number of a cell: a part of the way as percent, or a change of the metric. */
export function numberSaid({ share, change }: Effect): string {
  const said = share === null ? decimal(Math.abs(change)) : percent(Math.abs(share));
  return shownOf({ share, change, isNoise: false }) < 0 && /[1-9]/.test(said) ? `−${said}` : said;
}

/** A metric: three decimals, or a power of ten where these would be zeros. */
export function metricNumber(value: number): string {
  const size = Math.abs(value);
  const said = size === 0 ? "0" : size < 0.001 ? size.toExponential(1) : size.toFixed(3);
  return value < 0 ? `−${said.replace("-", "−")}` : said.replace("-", "−");
}

/** The largest number that colours a cell, over all cells that are more than noise. */
export function scaleOf(sweep: Sweep): number {
  let most = 0;
  for (const cell of sweep.cells) {
    const effect = effectOf(cell, sweep);
    if (!effect.isNoise) most = Math.max(most, Math.abs(shownOf(effect)));
  }
  return most;
}

/** The cell that does most; undefined for a sweep without cells. */
export function strongest(sweep: Sweep): PatchedCell | undefined {
  let best: PatchedCell | undefined;
  let most = -1;
  for (const cell of sweep.cells) {
    const effect = effectOf(cell, sweep);
    const size = effect.isNoise ? 0 : Math.abs(shownOf(effect));
    if (size > most) [best, most] = [cell, size];
  }
  return best;
}

/** The cells of one site. Those of a layer and a head are in the order of the groups of positions. */
export interface SiteMap {
  site: string;
  /** The last layer first. */
  layers: readonly number[];
  /** Empty where no head is patched alone. */
  heads: readonly number[];
  groups: readonly (readonly number[])[];
  /** The cells of a layer, by head; without heads under -1. */
  cells: ReadonlyMap<number, ReadonlyMap<number, readonly PatchedCell[]>>;
}

export function mapsOf({ cells }: Sweep): SiteMap[] {
  const sites = new Map<string, Map<number, Map<number, PatchedCell[]>>>();
  for (const cell of cells) {
    const layers = sites.get(cell.site) ?? new Map<number, Map<number, PatchedCell[]>>();
    const heads = layers.get(cell.layer) ?? new Map<number, PatchedCell[]>();
    const row = heads.get(cell.head ?? -1) ?? [];
    row.push(cell);
    sites.set(cell.site, layers.set(cell.layer, heads.set(cell.head ?? -1, row)));
  }
  return [...sites].map(([site, layers]) => {
    const [first] = layers.values();
    const [row = []] = first?.values() ?? [];
    return {
      site,
      layers: [...layers.keys()].sort((a, b) => b - a),
      heads: [...(first?.keys() ?? [])].filter((head) => head >= 0).sort((a, b) => a - b),
      groups: row.map(({ positions }) => positions),
      cells: layers,
    };
  });
}

/** What a map shows: one head over the groups of positions, or one group over the heads. */
export type View = { by: "tokens"; head: number } | { by: "heads"; group: number };

/** The cells of a layer in the order of the columns. */
export function rowOf({ cells, heads }: SiteMap, layer: number, view: View): readonly PatchedCell[] {
  const row = cells.get(layer);
  if (view.by === "tokens") return row?.get(view.head) ?? [];
  return heads.flatMap((head) => row?.get(head)?.[view.group] ?? []);
}

/** The positions of a cell with their tokens: `5 “ sea”`; of several, their number. */
export function positionsSaid(positions: readonly number[], tokens: readonly string[]): string {
  const [first, ...rest] = positions;
  if (first === undefined) return "no token";
  if (rest.length === 0) return `token ${first} “${chipText(tokens[first] ?? "")}”`;
  if (positions.length === tokens.length) return `all ${positions.length} tokens`;
  return positions.length > 6 ? `${positions.length} tokens from ${first} to ${rest.at(-1)}` : `tokens ${positions.join(", ")}`;
}

/** Where a cell is: `resid_post of layer 3, head 1, token 5 “ sea”`. */
export function placeSaid({ site, layer, head, positions }: PatchedCell, tokens: readonly string[]): string {
  return `${site} of layer ${layer}, ${head === undefined ? "" : `head ${head}, `}${positionsSaid(positions, tokens)}`;
}

/** The texts of a sweep. */
export type Texts = Pick<PatchState, "as" | "clean" | "corrupt" | "align">;

/** The edit that makes a cell: the text that is patched reads values of the other one. */
export function editOf({ site, layer, head, positions }: PatchedCell, direction: Sweep["direction"], texts: Texts): Edit {
  const isOfCorrupt = direction === "denoise";
  const pairs = (pairsIn(texts.align) ?? []).map(([clean, corrupt]): [number, number] => (isOfCorrupt ? [corrupt, clean] : [clean, corrupt]));
  const read = new Map(pairs);
  const other = textOf(isOfCorrupt ? texts.clean : texts.corrupt, texts.as);
  return {
    ...{ op: "replace", site, layer },
    ...(head === undefined ? {} : { heads: [head] }),
    positions: { prompt_positions: [...positions] },
    source: {
      ...(typeof other === "string" ? { text: other } : other),
      positions: { prompt_positions: positions.map((at) => read.get(at) ?? at) },
    },
  };
}

/** The path of the Steer page with the edit of a cell and the text that it patches. */
export function cellPath(cell: PatchedCell, direction: Sweep["direction"], texts: Texts): string {
  const patched = direction === "denoise" ? texts.corrupt : texts.clean;
  const asked =
    texts.as === "prompt"
      ? { as: "prompt" as const, prompt: patched }
      : { as: "chat" as const, chat: [{ role: "user", content: patched }] };
  // no feature beside the edit, also not the first one of the bundled model
  return `/steer?${written(new URLSearchParams(), STEER, { ...asked, f: [], e: [editOf(cell, direction, texts)] })}`;
}
