import type { Cards } from "../../api/queries";
import { Facts } from "../../parts/Facts";
import { MemoryBar } from "../../parts/MemoryBar";
import { ModelMemory } from "../../parts/ModelMemory";
import { count, mebibytes } from "../../rules/bytes";

type Card = Cards["cards"][number];
type Node = Cards["nodes"][number];

export function CardList({ report }: { report: Cards }) {
  const nodes = report.nodes;
  return (
    <div className="flow">
      {report.cards.length === 0 && (
        <p>
          No card is used: models run on the processor, and every feature works there.{" "}
          <span className="quiet">{report.reason}</span>
        </p>
      )}
      {report.cards.length > 0 && report.reason !== null && <p className="quiet">{report.reason}</p>}
      {report.cards.map((card) => (
        <CardMemory key={card.uuid} card={card} />
      ))}
      <article className="card" aria-label="This machine">
        <h3>This machine</h3>
        <MemoryBar
          name="this machine"
          total={report.host.total_mb}
          used={report.host.total_mb - report.host.available_mb}
        />
      </article>
      {report.model_memory && (
        <article className="card" aria-label="Loaded model">
          <h3>Loaded model</h3>
          <ModelMemory parts={report.model_memory.parts} />
        </article>
      )}
      {nodes.map((node) => (
        <NodeMemory key={`${node.node} ${node.address}`} node={node} />
      ))}
      {report.nodes_reason && <p className="notice">{report.nodes_reason}</p>}
    </div>
  );
}

function NodeMemory({ node }: { node: Node }) {
  return (
    <article className="card" aria-label={`Node ${node.node}`}>
      <h3>Node {node.node}</h3>
      <Facts
        facts={[
          ["address", node.address],
          ["steerserve", node.version],
          ["torch", node.torch],
          ["processor", node.cpu === null ? null : `${node.cpu}, ${count(node.cores)} cores`],
        ]}
      />
      {node.reason !== null && <p className="quiet">{node.reason}</p>}
      {node.host !== null && (
        <MemoryBar name={`node ${node.node}`} total={node.host.total_mb} used={node.host.total_mb - node.host.available_mb} />
      )}
      {node.cards.map((card) => (
        <CardMemory key={card.uuid} card={card} />
      ))}
    </article>
  );
}

function CardMemory({ card }: { card: Card }) {
  return (
    <article className="card" aria-label={card.name}>
      <h3>
        {card.smi_index}: {card.name}
      </h3>
      <MemoryBar name={card.name} total={card.total_mb} used={card.used_mb} ours={card.millm_reserved_mb} />
      {card.processes.length > 0 ? (
        <details>
          <summary>
            {count(card.processes.length)} {card.processes.length === 1 ? "process" : "processes"}
          </summary>
          <ul className="lines">
            {card.processes.map(({ pid, used_mb }) => (
              <li key={pid}>
                <code>pid {pid}</code> <span>{mebibytes(used_mb)}</span>
              </li>
            ))}
          </ul>
        </details>
      ) : (
        card.processes_reason !== null && <p className="quiet">{card.processes_reason}</p>
      )}
    </article>
  );
}
