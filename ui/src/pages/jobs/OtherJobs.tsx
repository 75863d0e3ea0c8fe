// The other jobs of a page that the service still keeps.
import { useQuery } from "@tanstack/react-query";
import { jobsOf, type JobFacts } from "../../api/jobs";
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

export function OtherJobs({
  kind,
  one,
  shown,
  onOpen,
}: {
  kind: string;
  /** What such a job is called: `comparison`. */
  one: string;
  shown: string;
  onOpen: (job: string) => void;
}) {
  const all = useQuery(jobsOf(kind)).data?.filter(({ id }) => id !== shown) ?? [];
  if (all.length === 0) return null;
  return (
    <Panel title={`Other ${one}s`} about={`A finished ${one} is kept for a day, until the service ends.`}>
      <ul className="lines">
        {all.map(({ id, state, progress, created_at }) => (
          <li key={id}>
            <span className="strong">
              <Clock at={created_at} />
            </span>
            <span className="says quiet">{state === "running" ? `runs, ${percent(progress)}` : STATES[state]}</span>
            <button type="button" className="small" aria-label={`Open the ${one} ${id}`} onClick={() => onOpen(id)}>
              Open
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
