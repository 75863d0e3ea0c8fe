// The features of a circuit as a drawing: layers as rows, the lowest at the bottom. An edge is lit where it has fired.
//
// A table with the same edges stands beside the drawing, so the drawing is hidden from screen readers.
import { useLayoutEffect, useRef, useState } from "react";
import { drawing, keyOf, NODE_HEIGHT, type End } from "../rules/graph";
import { signed } from "../rules/strength";

export interface GraphMember extends End {
  label: string | null;
  value: number;
}
export interface GraphEdge {
  edge_key: string;
  up: End;
  down: End;
  rung: number;
}

export function EdgeGraph({
  members,
  edges,
  lit,
  pointed = null,
}: {
  members: readonly GraphMember[];
  edges: readonly GraphEdge[];
  /** The keys of the edges that fired a moment ago. */
  lit: ReadonlySet<string>;
  /** The key of the edge that a person points at. */
  pointed?: string | null;
}) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const { nodes, lines, rows, nodeWidth, height } = drawing(members, edges, width);
  const known = new Map(members.map((member) => [keyOf(member), member]));
  const byKey = new Map(edges.map((edge) => [edge.edge_key, edge]));
  const shining = new Set(
    edges.filter(({ edge_key }) => lit.has(edge_key)).flatMap(({ up, down }) => [keyOf(up), keyOf(down)]),
  );
  return (
    <div ref={frame} className="graph" style={{ blockSize: height }} aria-hidden="true">
      {rows.map((row) => (
        <div key={row.layer} className="graph-row" style={{ insetBlockStart: row.y, blockSize: row.height }}>
          layer {row.layer}
        </div>
      ))}
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
        {lines.map(({ key, path }) => (
          <g
            key={key}
            className="graph-edge"
            data-rung={byKey.get(key)?.rung}
            data-lit={lit.has(key) || undefined}
            data-pointed={key === pointed || undefined}
          >
            <path d={path} className="halo" />
            <path d={path} className="line" />
          </g>
        ))}
      </svg>
      {nodes.map((node) => {
        const member = known.get(node.key);
        const name = node.index === null ? "whole cluster" : (member?.label ?? "no label");
        return (
          <div
            key={node.key}
            className="graph-node"
            title={name}
            data-steered={(member !== undefined && member.value !== 0) || undefined}
            data-lit={shining.has(node.key) || undefined}
            style={{ insetInlineStart: node.x, insetBlockStart: node.y, inlineSize: nodeWidth, blockSize: NODE_HEIGHT }}
          >
            <span className={member?.label === null ? "quiet" : "strong"}>{name}</span>
            <span className="place">
              {node.index ?? ""} {member !== undefined && <b>{signed(member.value)}</b>}
            </span>
          </div>
        );
      })}
    </div>
  );
}

function useWidth(frame: React.RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null || typeof ResizeObserver === "undefined") return undefined;
    setWidth(element.clientWidth);
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, [frame]);
  return width;
}
