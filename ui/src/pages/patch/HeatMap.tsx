// The patches of one site as a table of layers and tokens, or of layers and heads, and its open cell below it.
import { memo, useState, type CSSProperties, type FocusEvent, type KeyboardEvent } from "react";
import { useNavigate } from "react-router";
import { Segmented } from "../../parts/Segmented";
import {
  cellPath,
  effectOf,
  numberSaid,
  placeSaid,
  positionsSaid,
  rowOf,
  shownOf,
  strongest,
  type PatchedCell,
  type SiteMap,
  type Sweep,
  type Texts,
  type View,
} from "../../rules/patchMap";
import { chipText } from "../../rules/tokens";
import { OpenCell } from "./OpenCell";

const BY = [
  { value: "tokens", label: "tokens" },
  { value: "heads", label: "heads" },
] as const;
/** How far a key moves: rows down, columns to the right. */
const MOVES: Record<string, readonly [number, number]> = {
  ArrowDown: [1, 0],
  ArrowUp: [-1, 0],
  ArrowRight: [0, 1],
  ArrowLeft: [0, -1],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

export function HeatMap({
  map,
  sweep,
  most,
  open,
  texts,
  onOpen,
}: {
  map: SiteMap;
  sweep: Sweep;
  /** The number that has the full colour. */
  most: number;
  open: PatchedCell | undefined;
  /** Null where the texts of the sweep are not known. */
  texts: Texts | null;
  onOpen: (cell: PatchedCell) => void;
}) {
  const navigate = useNavigate();
  const [view, setView] = useState<View>(() => firstView(map, sweep));
  const rows = map.layers.map((layer) => rowOf(map, layer, view));
  const columns =
    view.by === "heads"
      ? map.heads.map((head) => ({ key: head, says: `head ${head}`, title: `head ${head}` }))
      : map.groups.map((positions, key) => ({ key, ...columnOf(positions, sweep.tokens) }));
  const openRow = open === undefined ? -1 : rows.findIndex((row) => row.includes(open));
  const moved = (event: KeyboardEvent<HTMLTableElement>) => {
    const at = placeIn(event.target);
    if (at === null) return;
    const cell = rows[at.row]?.[at.column];
    if (event.key === "Enter" && cell !== undefined && texts !== null) {
      event.preventDefault();
      void navigate(cellPath(cell, sweep.direction, texts));
    }
    const [down, right] = MOVES[event.key] ?? [];
    if (down === undefined || right === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const row = Math.max(0, Math.min(rows.length - 1, at.row + down));
    const column = Math.max(0, Math.min(columns.length - 1, at.column + right));
    event.currentTarget.querySelector<HTMLElement>(`[data-at="${row} ${column}"]`)?.focus();
  };
  const focused = ({ target }: FocusEvent<HTMLTableElement>) => {
    const at = placeIn(target);
    const cell = at === null ? undefined : rows[at.row]?.[at.column];
    if (cell !== undefined) onOpen(cell);
  };
  return (
    <section className="flow" aria-label={map.site}>
      <div className="row spread">
        <h3>
          <code>{map.site}</code>
        </h3>
        {map.heads.length > 0 && <Choice map={map} view={view} tokens={sweep.tokens} onChange={setView} />}
      </div>
      <div className="patch-scroll scroll-x">
        <table
          className="patch-map"
          role="grid"
          aria-label={`Patches of ${map.site} by layer and ${view.by === "heads" ? "head" : "token"}`}
          onKeyDown={moved}
          onFocus={focused}
        >
          <thead>
            <tr>
              <th scope="col">layer</th>
              {columns.map(({ key, says, title }) => (
                <th key={key} scope="col" title={title}>
                  {says}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((cells, row) => (
              <Row
                key={map.layers[row]}
                layer={map.layers[row] ?? 0}
                row={row}
                cells={cells}
                sweep={sweep}
                most={most}
                openAt={row === openRow && open !== undefined ? cells.indexOf(open) : -1}
                stop={row === (openRow < 0 ? 0 : openRow)}
              />
            ))}
          </tbody>
        </table>
      </div>
      {open?.site === map.site && <OpenCell cell={open} sweep={sweep} texts={texts} />}
    </section>
  );
}

/** One layer. `stop` says whether the Tab key comes to one of its cells: to the open one, else to the first. */
const Row = memo(
  function Row({
    layer,
    row,
    cells,
    sweep,
    most,
    openAt,
    stop,
  }: {
    layer: number;
    row: number;
    cells: readonly PatchedCell[];
    sweep: Sweep;
    most: number;
    openAt: number;
    stop: boolean;
  }) {
    return (
      <tr>
        <th scope="row">layer {layer}</th>
        {cells.map((cell, column) => {
          const effect = effectOf(cell, sweep);
          const number = numberSaid(effect);
          const place = placeSaid(cell, sweep.tokens);
          const size = most > 0 && !effect.isNoise ? Math.abs(shownOf(effect)) / most : 0;
          return (
            <td
              key={column}
              role="gridcell"
              tabIndex={stop && column === Math.max(0, openAt) ? 0 : -1}
              data-at={`${row} ${column}`}
              data-negative={(!effect.isNoise && number.startsWith("−")) || undefined}
              data-noise={effect.isNoise || undefined}
              aria-selected={column === openAt}
              aria-label={`${place}: ${effect.isNoise ? "no more than the noise floor" : number}`}
              style={{ "--v": size } as CSSProperties}
            >
              {effect.isNoise ? "·" : number}
            </td>
          );
        })}
      </tr>
    );
  },
  (before, after) =>
    before.openAt === after.openAt &&
    before.stop === after.stop &&
    before.sweep === after.sweep &&
    before.cells.length === after.cells.length &&
    before.cells.every((cell, at) => cell === after.cells[at]),
);

/** What the columns are, and which head or which tokens the cells are of. */
function Choice({
  map: { heads, groups, site },
  view,
  tokens,
  onChange,
}: {
  map: SiteMap;
  view: View;
  tokens: readonly string[];
  onChange: (view: View) => void;
}) {
  return (
    <div className="row">
      <Segmented
        label={`Columns of ${site}`}
        options={BY}
        value={view.by}
        onChange={(by) => onChange(by === "heads" ? { by, group: 0 } : { by, head: heads[0] ?? 0 })}
      />
      {view.by === "tokens" ? (
        <select aria-label={`Head of ${site}`} value={view.head} onChange={({ target }) => onChange({ by: "tokens", head: Number(target.value) })}>
          {heads.map((head) => (
            <option key={head} value={head}>
              head {head}
            </option>
          ))}
        </select>
      ) : (
        <select aria-label={`Tokens of ${site}`} value={view.group} onChange={({ target }) => onChange({ by: "heads", group: Number(target.value) })}>
          {groups.map((positions, at) => (
            <option key={at} value={at}>
              {positionsSaid(positions, tokens)}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

/** The head that does most over the tokens; where one group of tokens is patched, all heads. */
function firstView(map: SiteMap, sweep: Sweep): View {
  if (map.heads.length > 0 && map.groups.length === 1) return { by: "heads", group: 0 };
  const own = { ...sweep, cells: sweep.cells.filter(({ site }) => site === map.site) };
  return { by: "tokens", head: strongest(own)?.head ?? -1 };
}

function columnOf(positions: readonly number[], tokens: readonly string[]): { says: string; title: string } {
  const [first] = positions;
  const title = positionsSaid(positions, tokens);
  return { says: positions.length === 1 && first !== undefined ? chipText(tokens[first] ?? "") : title, title };
}

function placeIn(target: EventTarget): { row: number; column: number } | null {
  const [row, column] = (target as HTMLElement).dataset["at"]?.split(" ").map(Number) ?? [];
  return row === undefined || column === undefined ? null : { row, column };
}
