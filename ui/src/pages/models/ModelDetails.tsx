// The rest about a model, opened on demand: where it comes from, where it is, its card, its lock, its deletion.
import { useId, type ReactNode } from "react";
import type { Model } from "../../api/models";
import type { Cards } from "../../api/queries";
import { count, DASH, mebibytes } from "../../rules/bytes";
import { Clock } from "../../parts/Moment";

export function ModelDetails({
  model,
  cards,
  gpu,
  onGpu,
  isLocking,
  onLock,
  onDelete,
}: {
  model: Model;
  cards: Cards["cards"];
  gpu: string;
  onGpu: (gpu: string) => void;
  isLocking: boolean;
  onLock: () => void;
  onDelete: () => void;
}) {
  const isHeld = model.status === "loaded" || model.status === "downloading";
  return (
    <details>
      <summary>Details, lock and deletion</summary>
      <div className="flow">
        <table className="facts">
          <tbody>
            {rowsOf(model).map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{value ?? DASH}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {cards.length > 0 && <CardChoice model={model} cards={cards} gpu={gpu} onGpu={onGpu} />}
        <div className="row">
          <button type="button" disabled={isLocking} onClick={onLock}>
            {model.locked ? "Unlock" : "Lock"}
          </button>
          <span className="quiet says">
            {model.locked
              ? "Locked: no request of /v1 replaces this model. An operator may still load and unload."
              : "A lock keeps requests of /v1 that name another model from replacing this one."}
          </span>
        </div>
        <div className="row">
          <button type="button" className="danger" disabled={isHeld || model.locked} onClick={onDelete}>
            Delete
          </button>
          <span className="quiet says">
            {model.status === "loaded" && "Unload the model first."}
            {model.status === "downloading" && "Cancel the download first."}
            {model.locked && model.status !== "loaded" && "Unlock the model first."}
          </span>
        </div>
      </div>
    </details>
  );
}

function CardChoice({
  model,
  cards,
  gpu,
  onGpu,
}: {
  model: Model;
  cards: Cards["cards"];
  gpu: string;
  onGpu: (gpu: string) => void;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Card for the next load</label>
      <select id={id} value={gpu} disabled={model.status === "loaded"} onChange={(event) => onGpu(event.target.value)}>
        <option value="auto">the card with the most free memory</option>
        {cards.map((card) => (
          <option key={card.uuid} value={card.uuid}>
            {card.smi_index}: {card.name}, {mebibytes(card.free_mb)} free
          </option>
        ))}
        {cards.length > 1 && <option value="all">all cards</option>}
      </select>
    </div>
  );
}

function rowsOf(model: Model): (readonly [string, ReactNode])[] {
  const place = Object.entries(model.memory_by_device_mb).map(([device, size]) => `${device} ${mebibytes(size)}`);
  return [
    ["source", model.source === "local" ? "this machine" : "the hub"],
    ["repository", model.repo_id],
    ["commit", model.revision],
    ["folder", model.local_path],
    ["architecture", model.architecture],
    ["layers", model.layers === null ? null : count(model.layers)],
    ["KV cache", model.kv_cache_tokens === null ? null : `${count(model.kv_cache_tokens)} tokens, at most ${mebibytes(model.kv_cache_mb)}`],
    ["memory after the load", place.length === 0 ? null : place.join(", ")],
    ["embeddings", model.supports_embeddings ? "yes" : "no"],
    ["remote code", model.trust_remote_code ? "trusted" : "not trusted"],
    ["loaded", model.loaded_at === null ? null : <Clock at={model.loaded_at} />],
    ["registered", <Clock at={model.created_at} />],
  ];
}
