import { useMutation, useQueryClient } from "@tanstack/react-query";
import { request } from "../../api/client";
import type { Health } from "../../api/queries";
import { notify, notifyError } from "../../parts/Notices";
import { Status } from "../../parts/Status";
import { span } from "../../rules/age";

export function Breakers({ breakers }: { breakers: Health["circuit_breakers"] }) {
  const client = useQueryClient();
  const reset = useMutation({
    mutationFn: (name: string) => request("post", "/api/health/circuits/{name}/reset", { path: { name } }),
    onSuccess: (_, name) => notify(`The breaker ${name} is closed.`),
    onError: notifyError,
    onSettled: () => client.invalidateQueries({ queryKey: ["health"] }),
  });
  if (breakers === null) return <p className="quiet">The breakers could not be read.</p>;
  return (
    <ul className="lines">
      {breakers.map(({ name, state, is_open, failure_count, failure_threshold, retry_in_seconds, trips }) => (
        <li key={name}>
          <span className="strong">{name}</span>
          <Status status={state} />
          <span className="quiet says">
            {failure_count} of {failure_threshold} failures, opened {trips} {trips === 1 ? "time" : "times"}
            {is_open && `, tries again in ${span(retry_in_seconds)}`}
          </span>
          {is_open && (
            <button type="button" className="small" disabled={reset.isPending} onClick={() => reset.mutate(name)}>
              Close it now
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}
