// The comparison of two groups of texts by the features that tell them apart.
import { described, request, type Body } from "./client";
import type { Job } from "./jobs";

export type ContrastBody = Body<"/api/features/contrast">;
export type Contrast = Extract<NonNullable<Job["result"]>, { compared: unknown }>;
export type ContrastedFeature = Contrast["features"][number];
export const CONTRASTS = "contrast";

/** Begin the comparison. It goes on as a job, also where the page is left. */
export async function contrast(body: ContrastBody): Promise<string> {
  return (await request("post", "/api/features/contrast", { body })).job.id;
}

export function describedContrast(body: ContrastBody) {
  return described("post", "/api/features/contrast", { body, query: { wait: true } });
}

/** The result of a comparison; null for that of another kind of job. */
export function contrastOf({ result }: Job): Contrast | null {
  return result !== null && "compared" in result ? result : null;
}
