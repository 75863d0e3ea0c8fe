// Jobs: work of the service that outlasts a request.
import { queryOptions } from "@tanstack/react-query";
import { request, type Data } from "./client";
import { BUSY_POLL, unlessLive } from "./queries";

export type Job = Data<"/api/jobs/{job_id}">["job"];

export type JobFacts = Data<"/api/jobs">["jobs"][number];

/** The jobs of a kind that the service still keeps, the newest first. */
export const jobsOf = (wanted: string) =>
  queryOptions({
    queryKey: ["jobs", "list", wanted] as const,
    queryFn: async ({ signal }) => {
      const { jobs } = await request("get", "/api/jobs", { signal });
      return jobs.filter(({ kind }) => kind === wanted);
    },
    refetchInterval: unlessLive,
  });

/** A job with its result, read again until it has ended. */
export const job = (id: string | null) =>
  queryOptions({
    queryKey: ["jobs", id] as const,
    queryFn: async ({ signal }) =>
      (await request("get", "/api/jobs/{job_id}", { path: { job_id: id ?? "" }, signal })).job,
    enabled: id !== null,
    refetchInterval: ({ state }) => (state.data !== undefined && isEnded(state.data) ? false : BUSY_POLL),
  });

export function isEnded({ state }: Pick<Job, "state">): boolean {
  return state !== "waiting" && state !== "running";
}

/** Cancel a job that waits or runs, or forget one that has ended. */
export function removeJob(job_id: string) {
  return request("delete", "/api/jobs/{job_id}", { path: { job_id } });
}
