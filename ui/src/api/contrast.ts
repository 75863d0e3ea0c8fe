// The comparison of two groups of texts by the features that tell them apart.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import type { Job } from "./jobs";
import { unlessLive } from "./queries";

export type ContrastBody = Body<"/api/features/contrast">;
export type Contrast = Extract<NonNullable<Job["result"]>, { compared: unknown }>;
export type ContrastedFeature = Contrast["features"][number];
export type JobFacts = Data<"/api/jobs">["jobs"][number];

/** Begin the comparison. It goes on as a job, also where the page is left. */
export async function contrast(body: ContrastBody): Promise<string> {
  return (await request("post", "/api/features/contrast", { body })).job.id;
}

export function describedContrast(body: ContrastBody) {
  return described("post", "/api/features/contrast", { body, query: { wait: true } });
}

/** The comparisons that the service still keeps, the newest first. */
export const contrasts = queryOptions({
  queryKey: ["jobs", "list"] as const,
  queryFn: async ({ signal }) => {
    const { jobs } = await request("get", "/api/jobs", { signal });
    return jobs.filter(({ kind }) => kind === "contrast");
  },
  refetchInterval: unlessLive,
});

/** The result of a comparison; null for that of another kind of job. */
export function contrastOf({ result }: Job): Contrast | null {
  return result !== null && "compared" in result ? result : null;
}
