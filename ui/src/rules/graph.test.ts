import { describe, expect, it } from "vitest";
import { drawing, NODE_HEIGHT } from "./graph";

const end = (feature_idx: number | null, layer: number) => ({ feature_idx, layer });
const edge = (up: ReturnType<typeof end>, down: ReturnType<typeof end>) => ({
  up,
  down,
  edge_key: `${up.feature_idx ?? "cluster"}@${up.layer}->${down.feature_idx ?? "cluster"}@${down.layer}`,
});

describe("the drawing of a circuit", () => {
  it("has the lowest layer at the bottom and each feature once", () => {
    const low = end(955, 2);
    const made = drawing([low, end(90, 3), end(350, 3)], [edge(low, end(90, 3)), edge(low, end(350, 3))], 600);
    expect(made.nodes.map((node) => node.key)).toEqual(["955@2", "90@3", "350@3"]);
    expect(made.rows.map((row) => row.layer)).toEqual([2, 3]);
    const [below, above] = made.rows;
    expect(below?.y).toBeGreaterThan((above?.y ?? 0) + NODE_HEIGHT);
    expect(made.lines.map((line) => line.key)).toEqual(["955@2->90@3", "955@2->350@3"]);
    expect(made.lines.every((line) => line.path.startsWith("M "))).toBe(true);
  });

  it("stays within a narrow width, with several lines of nodes where a layer has many", () => {
    const members = Array.from({ length: 20 }, (_, index) => end(index, 5));
    const made = drawing(members, [], 300);
    for (const node of made.nodes) {
      expect(node.x).toBeGreaterThanOrEqual(0);
      expect(node.x + made.nodeWidth).toBeLessThanOrEqual(300);
      expect(node.y + NODE_HEIGHT).toBeLessThanOrEqual(made.height);
    }
    expect(new Set(made.nodes.map((node) => `${node.x} ${node.y}`)).size).toBe(20);
  });

  it("orders the nodes of a layer like their neighbours below", () => {
    const below = [end(1, 0), end(2, 0), end(3, 0)];
    const above = [end(13, 1), end(12, 1), end(11, 1)];
    const edges = above.map((to, place) => edge(below[2 - place] ?? end(0, 0), to));
    const made = drawing([...below, ...above], edges, 900);
    const inRow = made.nodes.filter((node) => node.layer === 1).sort((a, b) => a.x - b.x);
    expect(inRow.map((node) => node.index)).toEqual([11, 12, 13]);
  });

  it("has a node for an end that is a whole cluster or no member", () => {
    const made = drawing([end(1, 0)], [edge(end(null, 0), end(7, 2))], 400);
    expect(made.nodes.map((node) => node.key)).toEqual(["1@0", "cluster@0", "7@2"]);
  });
});
