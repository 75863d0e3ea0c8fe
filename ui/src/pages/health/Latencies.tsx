import type { Metrics } from "../../api/interim";
import { Figure } from "../../parts/Figure";
import { milliseconds } from "../../rules/age";
import { count } from "../../rules/bytes";

const PARTS = ["p50", "p95", "p99"] as const;
const WORDS = { p50: "median", p95: "95 of 100 within", p99: "99 of 100 within" };

export function Latencies({ metrics }: { metrics: Metrics }) {
  return (
    <>
      <table className="numbers-table">
        <thead>
          <tr>
            <th scope="col">time</th>
            {PARTS.map((part) => (
              <th key={part} scope="col">
                {WORDS[part]}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Row name="to the first token" values={metrics.time_to_first_token_ms} />
          <Row name="to the end of the answer" values={metrics.latency_ms} />
        </tbody>
      </table>
      <div className="figures">
        <Figure label="requests" value={count(metrics.total_requests)} />
        <Figure label="refused or failed" value={count(metrics.request_errors)} />
        <Figure label="tokens read" value={count(metrics.prompt_tokens)} />
        <Figure label="tokens written" value={count(metrics.completion_tokens)} />
      </div>
    </>
  );
}

function Row({ name, values }: { name: string; values: Metrics["latency_ms"] }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      {PARTS.map((part) => (
        <td key={part}>{milliseconds(values[part])}</td>
      ))}
    </tr>
  );
}
