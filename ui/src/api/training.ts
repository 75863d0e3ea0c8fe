// Vectors and probes from two groups of texts or chats, trained by a job.
import { described, request, type Body } from "./client";
import type { Job } from "./jobs";

export type Kind = "vector" | "probe";
export type TrainingBody = Body<"/api/vectors/train">;

/** The body for a probe, which has one method. */
function ofProbe(body: TrainingBody): Body<"/api/probes/train"> {
  return { ...body, method: "logistic" };
}

/** Begin the training. It goes on as a job, also where the page is left. */
export async function train(kind: Kind, body: TrainingBody): Promise<string> {
  const begun =
    kind === "vector"
      ? await request("post", "/api/vectors/train", { body })
      : await request("post", "/api/probes/train", { body: ofProbe(body) });
  return begun.job.id;
}

/** The same request, for people who want to copy it. */
export function describedTraining(kind: Kind, body: TrainingBody) {
  const query = { wait: true };
  return kind === "vector"
    ? described("post", "/api/vectors/train", { body, query })
    : described("post", "/api/probes/train", { body: ofProbe(body), query });
}

/** The id and the name of the vector or the probe that a job has trained; null for the result of another kind of job. */
export function trainedBy({ result }: Job): { id: string; name: string } | null {
  return result !== null && "training" in result ? { id: result.id, name: result.name } : null;
}
