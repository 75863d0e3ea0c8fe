// The comparisons that the service still keeps.
import { useQuery } from "@tanstack/react-query";
import { contrasts, type JobFacts } from "../../api/contrast";
import { Clock } from "../../parts/Moment";
import { Panel } from "../../parts/Panel";
import { percent } from "../../rules/bytes";

const STATES: Record<JobFacts["state"], string> = {
  waiting: "waits",
  running: "runs",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export function Earlier({ shown, onOpen }: { shown: string; onOpen: (job: string) => void }) {
  const all = useQuery(contrasts).data?.filter(({ id }) => id !== shown) ?? [];
  if (all.length === 0) return null;
  return (
    <Panel title="Other comparisons" about="A finished comparison is kept for a day, until the service ends.">
      <ul className="lines">
        {all.map(({ id, state, progress, created_at }) => (
          <li key={id}>
            <span className="strong">
              <Clock at={created_at} />
            </span>
            <span className="says quiet">{state === "running" ? `runs, ${percent(progress)}` : STATES[state]}</span>
            <button type="button" className="small" aria-label={`Open the comparison ${id}`} onClick={() => onOpen(id)}>
              Open
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
