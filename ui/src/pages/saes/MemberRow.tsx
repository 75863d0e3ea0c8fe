// One SAE that is about to be attached: its layer, and whether it fits the loaded model there.
import { useId } from "react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { Sae, Verdict } from "../../api/saes";
import type { Model } from "../../api/models";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Facts } from "../../parts/Facts";
import { count, decimal } from "../../rules/bytes";
import { LAYER_MOST, type Member } from "../../rules/members";
import { MEANS } from "../../rules/words";

export function MemberRow({
  member,
  record,
  loaded,
  verdict,
  onChange,
}: {
  member: Member;
  record: Sae | undefined;
  loaded: Model | undefined;
  /** Whether the SAE fits at its layer, as the service answers. */
  verdict: UseQueryResult<Verdict> | undefined;
  onChange: (changed: Member | null) => void;
}) {
  const id = useId();
  const { sae_id, layer } = member;
  const isCompatible = verdict?.data?.compatible;
  const name = record?.name ?? sae_id;
  return (
    <li className="record" aria-label={name}>
      <div className="record-head">
        <h3>{name}</h3>
        {isCompatible !== undefined && (
          <span className={isCompatible ? "status good" : "status bad"} role="status">
            <span aria-hidden="true">{isCompatible ? "●" : "■"}</span> {isCompatible ? "fits" : "does not fit"} at layer {layer}
          </span>
        )}
        <span className="layer-choice">
          <label htmlFor={id}>Layer</label>
          <LayerPicker
            id={id}
            layer={layer}
            layers={loaded?.layers ?? null}
            trained={record?.trained_layer ?? null}
            onChange={(next) => onChange({ sae_id, layer: next })}
          />
        </span>
        <button type="button" className="small" aria-label={`Leave ${name} out`} onClick={() => onChange(null)}>
          ✕
        </button>
      </div>
      {record !== undefined && (
        <Facts
          facts={[
            ["width", record.d_in === null ? null : `${count(record.d_in)} to ${count(record.d_sae)}`],
            ["site", record.site],
            ["activation", record.architecture],
            ["trained on", record.trained_on],
            ["claimed L0", record.average_l0 === null ? null : decimal(record.average_l0, 0), `${MEANS.l0} ${MEANS.claimed}`],
          ]}
        />
      )}
      {(verdict?.data?.errors ?? []).map((error) => (
        <p key={error} className="notice notice-bad">
          {error}
        </p>
      ))}
      {(verdict?.data?.warnings ?? []).map((warning) => (
        <p key={warning} className="notice notice-warn">
          {warning}
        </p>
      ))}
      {verdict !== undefined && verdict.error !== null && <ErrorNotice error={verdict.error} onRetry={() => void verdict.refetch()} />}
    </li>
  );
}

/** The layers of the loaded model. Where their number is not known, a box for a number. */
function LayerPicker({
  id,
  layer,
  layers,
  trained,
  onChange,
}: {
  id: string;
  layer: number;
  layers: number | null;
  trained: number | null;
  onChange: (layer: number) => void;
}) {
  if (layers === null) {
    const held = (written: string) => Math.min(LAYER_MOST, Math.max(0, Math.trunc(Number(written))));
    return <input id={id} type="number" min={0} max={LAYER_MOST} step={1} value={layer} onChange={(event) => onChange(held(event.target.value))} />;
  }
  const numbers = Array.from({ length: Math.max(layers, layer + 1) }, (_, number) => number);
  return (
    <select id={id} value={layer} onChange={(event) => onChange(Number(event.target.value))}>
      {numbers.map((number) => (
        <option key={number} value={number}>
          {number}
          {number === trained ? ", its own" : number >= layers ? ", not in this model" : ""}
        </option>
      ))}
    </select>
  );
}
