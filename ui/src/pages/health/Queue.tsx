import type { Health } from "../../api/queries";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Figure } from "../../parts/Figure";
import { span } from "../../rules/age";
import { count } from "../../rules/bytes";

export function Queue({ inference }: Pick<Health, "inference">) {
  if (inference.error !== null) return <ErrorNotice error={new Error(inference.error)} />;
  const { in_flight, queue_max_concurrent, queue_waiting, queue_max_pending, estimated_wait_seconds } = inference;
  return (
    <div className="figures">
      <Figure label="running" value={count(in_flight)} of={count(queue_max_concurrent)}>
        <meter aria-label="Running requests" min={0} max={queue_max_concurrent ?? 1} value={in_flight ?? 0} />
      </Figure>
      <Figure label="waiting" value={count(queue_waiting)} of={count(queue_max_pending)}>
        <meter aria-label="Waiting requests" min={0} max={queue_max_pending ?? 1} value={queue_waiting ?? 0} />
      </Figure>
      <Figure label="estimated wait" value={span(estimated_wait_seconds)} />
    </div>
  );
}
