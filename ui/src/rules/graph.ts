// The places of the nodes and the edges of a circuit: layers as rows, the lowest one at the bottom, features as nodes.

export interface End {
  layer: number;
  /** Null for a whole cluster. */
  feature_idx: number | null;
}
export interface Node {
  key: string;
  layer: number;
  index: number | null;
  x: number;
  y: number;
}
export interface Line {
  key: string;
  /** The path of the edge, for the attribute `d`. */
  path: string;
}
export interface Row {
  layer: number;
  y: number;
  height: number;
}
export interface Drawing {
  nodes: Node[];
  lines: Line[];
  rows: Row[];
  nodeWidth: number;
  height: number;
}

export const NODE_HEIGHT = 48;
const GAP = 10;
/** The space between two layers, in which the edges are seen. */
const BETWEEN = 52;
/** The space in the band of a layer: around its nodes, and for its name above them. */
const PADDING = 10;
const HEAD = 30;
const NARROWEST = 112;
const WIDEST = 190;

export function keyOf(end: End): string {
  return `${end.feature_idx ?? "cluster"}@${end.layer}`;
}

/**
 * A drawing in a given width. A layer with more nodes than fit has several lines of nodes.
 *
 * Args: `members` and the ends of `edges` become nodes. Nodes of a layer stand in the order of their neighbours below,
 * which keeps most edges apart.
 */
export function drawing(members: readonly End[], edges: readonly { up: End; down: End; edge_key: string }[], width: number): Drawing {
  const ends = new Map<string, End>();
  for (const end of [...members, ...edges.flatMap(({ up, down }) => [up, down])]) ends.set(keyOf(end), end);
  const layers = [...new Set([...ends.values()].map((end) => end.layer))].sort((a, b) => a - b);
  const inner = Math.max(NARROWEST, width - 2 * PADDING);
  const most = Math.max(1, Math.floor((inner + GAP) / (NARROWEST + GAP)));
  const widest = Math.max(1, ...layers.map((layer) => [...ends.values()].filter((end) => end.layer === layer).length));
  const perLine = Math.min(most, widest);
  const nodeWidth = Math.min(WIDEST, Math.floor((inner - GAP * (perLine - 1)) / perLine));

  const places = new Map<string, Node>();
  const rows: Row[] = [];
  let bottom = 0;
  for (const layer of layers) {
    const ordered = inOrder([...ends.values()].filter((end) => end.layer === layer), edges, places);
    const lines = Math.ceil(ordered.length / perLine);
    const height = HEAD + lines * NODE_HEIGHT + (lines - 1) * GAP + PADDING;
    bottom -= height;
    rows.push({ layer, y: bottom, height });
    ordered.forEach((end, place) => {
      const line = Math.floor(place / perLine);
      const inLine = Math.min(perLine, ordered.length - line * perLine);
      const taken = inLine * nodeWidth + (inLine - 1) * GAP;
      const x = PADDING + (inner - taken) / 2 + (place % perLine) * (nodeWidth + GAP);
      const y = bottom + HEAD + line * (NODE_HEIGHT + GAP);
      places.set(keyOf(end), { key: keyOf(end), layer, index: end.feature_idx, x, y });
    });
    bottom -= BETWEEN;
  }
  const top = bottom + BETWEEN;
  const nodes = [...places.values()].map((node) => ({ ...node, y: node.y - top }));
  const placed = new Map(nodes.map((node) => [node.key, node]));
  return {
    nodes,
    lines: edges.map((edge) => ({ key: edge.edge_key, path: path(placed, edge, nodeWidth) })),
    rows: rows.map((row) => ({ ...row, y: row.y - top })),
    nodeWidth,
    height: -top,
  };
}

/** The nodes of a layer in the order of the middle of their neighbours that have places already. */
function inOrder(ends: End[], edges: readonly { up: End; down: End }[], places: ReadonlyMap<string, Node>): End[] {
  const middle = (end: End) => {
    const others = edges.flatMap(({ up, down }) =>
      keyOf(down) === keyOf(end) ? [keyOf(up)] : keyOf(up) === keyOf(end) ? [keyOf(down)] : [],
    );
    const xs = others.flatMap((key) => places.get(key)?.x ?? []);
    return xs.length === 0 ? Infinity : xs.reduce((sum, x) => sum + x, 0) / xs.length;
  };
  return ends
    .map((end, place) => ({ end, place, at: middle(end) }))
    .sort((a, b) => (a.at === b.at ? a.place - b.place : a.at - b.at))
    .map(({ end }) => end);
}

function path(places: ReadonlyMap<string, Node>, edge: { up: End; down: End }, nodeWidth: number): string {
  const from = places.get(keyOf(edge.up));
  const to = places.get(keyOf(edge.down));
  if (from === undefined || to === undefined) return "";
  const [x1, x2] = [from.x + nodeWidth / 2, to.x + nodeWidth / 2];
  if (from.layer === to.layer) {
    // an arc under the nodes of the layer
    const y = Math.max(from.y, to.y) + NODE_HEIGHT;
    return `M ${x1} ${from.y + NODE_HEIGHT} C ${x1} ${y + 28} ${x2} ${y + 28} ${x2} ${to.y + NODE_HEIGHT}`;
  }
  // edges lead from the upstream feature to the downstream one, whichever layer is higher
  const isRising = to.y < from.y;
  const y1 = isRising ? from.y : from.y + NODE_HEIGHT;
  const y2 = isRising ? to.y + NODE_HEIGHT : to.y;
  const half = (y1 + y2) / 2;
  return `M ${x1} ${y1} C ${x1} ${half} ${x2} ${half} ${x2} ${y2}`;
}
