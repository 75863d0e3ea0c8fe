// One model: what it is, the one button for its status, its progress, why an action was refused, and its details.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { act, remove, setLock, type Model } from "../../api/models";
import { attachments, health, type Cards, type Health } from "../../api/queries";
import { Confirm } from "../../parts/Confirm";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Facts, type Fact } from "../../parts/Facts";
import { ModelMemory } from "../../parts/ModelMemory";
import { notify } from "../../parts/Notices";
import { Status } from "../../parts/Status";
import { TokenField, useToken } from "../../parts/TokenField";
import { asApiError, needsToken } from "../../rules/errors";
import { bytes, count, mebibytes } from "../../rules/bytes";
import { ACTION_WORDS, actionOf, cut, refusedByLease, type ModelAction } from "../../rules/residency";
import { ModelDetails } from "./ModelDetails";
import { ModelProgress } from "./ModelProgress";
import { Replicas } from "./Replicas";

export function ModelRow({
  model,
  loaded,
  lease,
  memory,
}: {
  model: Model;
  loaded: Model | undefined;
  lease: Health["lease"] | undefined;
  memory: Cards | undefined;
}) {
  const client = useQueryClient();
  const [gpu, setGpu] = useState("auto");
  const [lost, setLost] = useState<string[]>([]);
  const [isDeleting, setDeleting] = useState(false);
  const token = useToken(model.repo_id ?? "");
  const settled = () =>
    Promise.all(["models", "health", "attachments", "saes"].map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  const work = useMutation({
    mutationFn: (wanted: ModelAction) => act(wanted, model, gpu, token.take),
    onSettled: settled,
  });
  const lock = useMutation({ mutationFn: () => setLock(model), onSettled: settled });
  const deletion = useMutation({
    mutationFn: () => remove(model),
    onSuccess: () => notify(`${model.name} is deleted.`),
    onSettled: settled,
  });

  const action = actionOf(model);
  const refused = refusedByLease(action, model.id, lease);
  const isReplacing = action === "load" && loaded !== undefined;
  const press = async () => {
    if (action !== "unload" && !isReplacing) return work.mutate(action);
    // what would be cut is asked at this moment, so that no older answer decides
    const [state, attached] = await Promise.all([
      client.fetchQuery({ ...health, staleTime: 0 }).catch(() => undefined),
      client.fetchQuery({ ...attachments, staleTime: 0 }).catch(() => undefined),
    ]);
    const words = cut(state?.inference.in_flight ?? null, state?.inference.queue_waiting ?? null, attached?.count ?? 0);
    if (words.length === 0) work.mutate(action);
    else setLost(words);
  };
  const error = work.error ?? lock.error ?? deletion.error;
  const held = memory?.model_memory?.model_id === model.id && model.status === "loaded" ? memory.model_memory : null;
  const isTokenNeeded = action === "resume" && needsToken(work.error);
  return (
    <li className="record" aria-label={model.name} data-current={model.status === "loaded" || undefined}>
      <div className="record-head">
        <h3>{model.name}</h3>
        <Status status={model.status} />
        {model.locked && <span className="tag">locked</span>}
        {lease?.model_id === model.id && <span className="tag">leased by {lease.holder}</span>}
        <button
          type="button"
          className={action === "load" || action === "resume" ? "primary" : ""}
          disabled={work.isPending || action === "wait" || refused !== null}
          aria-label={`${ACTION_WORDS[action]} ${model.name}`}
          onClick={() => void press()}
        >
          {ACTION_WORDS[action]}
        </button>
      </div>
      {refused !== null && (
        <p className="quiet">
          {ACTION_WORDS[action]} is refused until the lease ends. {refused}
        </p>
      )}
      <Facts facts={factsOf(model)} />
      {held !== null && <ModelMemory parts={held.parts} />}
      <ModelProgress model={model} />
      {model.replicas && <Replicas model={model} replicas={model.replicas} />}
      {model.error_message !== null && error === null && (
        <p className={model.status === "error" ? "notice notice-bad" : "notice"}>{model.error_message}</p>
      )}
      {error !== null && <ErrorNotice error={asApiError(error)} />}
      {isTokenNeeded && <TokenField field={token.field} why="The repository is gated." />}
      <ModelDetails
        model={model}
        cards={memory?.cards ?? []}
        gpu={gpu}
        onGpu={setGpu}
        isLocking={lock.isPending}
        onLock={() => lock.mutate()}
        onDelete={() => setDeleting(true)}
      />
      <Confirm
        title={action === "unload" ? `Unload ${model.name}?` : `Load ${model.name} in the place of ${loaded?.name ?? "the loaded model"}?`}
        action={ACTION_WORDS[action]}
        isOpen={lost.length > 0}
        onClose={() => setLost([])}
        onConfirm={() => work.mutate(action)}
      >
        {lost.map((sentence) => (
          <p key={sentence}>{sentence}</p>
        ))}
      </Confirm>
      <Confirm
        title={`Delete ${model.name}?`}
        action="Delete"
        isDangerous
        isOpen={isDeleting}
        onClose={() => setDeleting(false)}
        onConfirm={() => deletion.mutate()}
      >
        <p>
          {model.source === "local"
            ? "The record is deleted. The files of this machine stay where they are."
            : "The record and its downloaded files are deleted. Files that another model uses stay."}
        </p>
      </Confirm>
    </li>
  );
}

const PROCESS = "All that the engine’s process held when the load was done: weights, buffers and libraries.";
const ESTIMATE = "What the weights will take, by an estimate. The check before a load decides.";
const KV = "What the tokens of all running requests may take. It is allocated as they need it.";

function factsOf(model: Model): Fact[] {
  const isHeld = model.memory_footprint !== null;
  return [
    ["parameters", model.params],
    ["precision", precisionOf(model), "The precision of the record, and the type in which the model is held."],
    ["on disk", model.disk_size_mb > 0 ? mebibytes(model.disk_size_mb) : null],
    isHeld
      ? ["memory after the load", bytes(model.memory_footprint), PROCESS]
      : ["memory, estimated", model.estimated_memory_mb > 0 ? `≈ ${mebibytes(model.estimated_memory_mb)}` : null, ESTIMATE],
    ...(model.kv_cache_mb === null ? [] : [["KV cache, at most", mebibytes(model.kv_cache_mb), KV] as const]),
    ["engine", model.engine === "gguf" ? "llama.cpp" : model.engine],
    ["context", model.context_length === null ? null : `${count(model.context_length)} tokens`],
  ];
}

function precisionOf({ gguf_label, quantization, dtype }: Model): string {
  const asked = gguf_label ?? quantization;
  return dtype === null || dtype === asked ? asked : `${asked}, ${dtype}`;
}
