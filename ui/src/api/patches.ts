// Patch sweeps: what the values of one text do in another, as a job.
import { described, request } from "./client";
import type { Job } from "./jobs";
import { isRecord } from "../rules/errors";
import type { PatchBody } from "../rules/patch";
import type { Sweep } from "../rules/patchMap";

/** The result of a sweep. */
export interface Patches extends Sweep {
  model: string;
  metric: PatchBody["metric"]["kind"];
}

export const PATCHES = "patches";

/** Begin the sweep. It goes on as a job, also where the page is left. */
export async function patch(body: PatchBody): Promise<string> {
  return (await request("post", "/api/patches", { body })).job.id;
}

export function describedPatch(body: PatchBody) {
  return described("post", "/api/patches", { body, query: { wait: true } });
}

/** The result of a sweep; null for that of another kind of job. */
export function patchesOf({ result }: Job): Patches | null {
  const found: unknown = result;
  return isRecord(found) && "noise_floor" in found ? (found as unknown as Patches) : null;
}
