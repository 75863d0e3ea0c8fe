import type { Cards } from "../../api/queries";
import { MemoryBar } from "../../parts/MemoryBar";
import { count, mebibytes } from "../../rules/bytes";

export function CardList({ report }: { report: Cards }) {
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
        <article key={card.uuid} className="card" aria-label={card.name}>
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
      ))}
      <article className="card" aria-label="This machine">
        <h3>This machine</h3>
        <MemoryBar
          name="this machine"
          total={report.host.total_mb}
          used={report.host.total_mb - report.host.available_mb}
        />
      </article>
    </div>
  );
}
