// What may be done with a model in its status, and what that would cut short.

export type ModelStatus = "downloading" | "ready" | "loading" | "loaded" | "unloading" | "error";
export type ModelAction = "load" | "unload" | "cancel" | "resume" | "wait";

/** The word on the one button of a model. */
export const ACTION_WORDS: Record<ModelAction, string> = {
  load: "Load",
  unload: "Unload",
  cancel: "Cancel",
  resume: "Resume",
  wait: "Unloading",
};

/** What the one button of a model does. A download that failed has left no folder, and goes on where it ended. */
export function actionOf(model: { status: ModelStatus; source: string; local_path: string | null }): ModelAction {
  if (model.status === "downloading" || model.status === "loading") return "cancel";
  if (model.status === "loaded") return "unload";
  if (model.status === "unloading") return "wait";
  return model.status === "error" && model.source === "huggingface" && model.local_path === null ? "resume" : "load";
}

/** Why the lease refuses an action to this page, which holds no lease; null where it does not refuse. */
export function refusedByLease(
  action: ModelAction,
  modelId: number,
  lease: { model_id: number; model_name: string; holder: string } | null | undefined,
): string | null {
  if (!lease) return null;
  const isOwn = lease.model_id === modelId;
  if (action === "unload" && isOwn) return `${lease.holder} holds a lease on this model.`;
  if (action === "load" && !isOwn) return `${lease.holder} holds a lease on ${lease.model_name}, which would be unloaded.`;
  return null;
}

/** What would be lost if the loaded model went now, as sentences; empty where nothing would be. */
export function cut(running: number | null, waiting: number | null, attached: number): string[] {
  const requests = (running ?? 0) + (waiting ?? 0);
  return [
    requests === 0
      ? ""
      : `${requests === 1 ? "1 request is in flight. It gets" : `${requests} requests are in flight. They get`} some time to end, and then an end by force.`,
    attached === 0
      ? ""
      : `${attached === 1 ? "1 SAE is attached. It is" : `${attached} SAEs are attached. They are`} detached, and the steering values are cleared.`,
  ].filter((sentence) => sentence !== "");
}
