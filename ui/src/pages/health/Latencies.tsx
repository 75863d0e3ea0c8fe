import type { Metrics } from "../../api/queries";
import { milliseconds } from "../../rules/age";

const PARTS = ["p50", "p95", "p99"] as const;
const WORDS = {
  p50: ["median", "half of the requests were faster"],
  p95: ["p95", "95 of 100 requests were faster"],
  p99: ["p99", "99 of 100 requests were faster"],
} as const;

export function Latencies({ metrics }: { metrics: Metrics }) {
  return (
    <table className="numbers-table">
      <thead>
        <tr>
          <th scope="col">time</th>
          {PARTS.map((part) => (
            <th key={part} scope="col">
              <abbr title={WORDS[part][1]}>{WORDS[part][0]}</abbr>
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        <Row name="to the first token" values={metrics.time_to_first_token_ms} />
        <Row name="to the end of the answer" values={metrics.latency_ms} />
      </tbody>
    </table>
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
