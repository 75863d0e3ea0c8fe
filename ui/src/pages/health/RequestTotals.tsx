import type { Metrics } from "../../api/queries";
import { Figure } from "../../parts/Figure";
import { count } from "../../rules/bytes";

export function RequestTotals({ metrics }: { metrics: Metrics }) {
  return (
    <div className="figures">
      <Figure label="requests" value={count(metrics.total_requests)} />
      <Figure label="refused" value={count(metrics.request_errors)} />
      <Figure label="tokens read" value={count(metrics.prompt_tokens)} />
      <Figure label="tokens written" value={count(metrics.completion_tokens)} />
    </div>
  );
}
