// A job that waits or runs, with its progress and its end before time; or why it has no result.
import { useEffect } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { job as asked, removeJob, type Job } from "../../api/jobs";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notifyError } from "../../parts/Notices";
import { Answered } from "../../parts/Panel";
import { ProgressRow } from "../../parts/ProgressRow";
import { ApiError } from "../../rules/errors";

export function JobRow({ id, name, onDone }: { id: string; name: string; onDone: (job: Job) => void }) {
  const client = useQueryClient();
  const query = useQuery(asked(id));
  const cancel = useMutation({
    mutationFn: () => removeJob(id),
    onError: notifyError,
    onSettled: () => client.invalidateQueries({ queryKey: ["jobs"] }),
  });
  const done = query.data?.state === "done" ? query.data : null;
  useEffect(() => {
    if (done !== null) onDone(done);
    // the job of an id ends once
  }, [done?.id]);
  return (
    <Answered query={query}>
      {({ state, progress, message, error }) => {
        if (state === "cancelled") return <p className="empty">{name} was cancelled.</p>;
        if (error !== null) return <ErrorNotice error={new ApiError(error.message, error.code, error.details)} />;
        return (
          <ProgressRow
            name={name}
            progress={state === "waiting" ? null : 100 * progress}
            says={state === "waiting" ? "Waits for its turn" : message}
            actions={
              <button type="button" className="small" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
                Cancel
              </button>
            }
          />
        );
      }}
    </Answered>
  );
}
