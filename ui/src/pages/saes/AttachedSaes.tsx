// The attached SAEs: where each one is, the figures of its self-check, and its warnings, which stay while it is attached.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { detach, type Attached, type Attachments, type Sae } from "../../api/saes";
import { steering, type Steering } from "../../api/queries";
import { CheckFigures } from "../../parts/CheckFigures";
import { Confirm } from "../../parts/Confirm";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Facts } from "../../parts/Facts";
import { notify } from "../../parts/Notices";
import { count, mebibytes } from "../../rules/bytes";

export function AttachedSaes({ attached, records }: { attached: Attachments; records: readonly Sae[] }) {
  const steered = useQuery(steering).data;
  const { entries, to_restore, total_memory_usage_mb, vram_envelope_mb, vram_warning } = attached;
  return (
    <div className="flow">
      {to_restore.length > 0 && (
        <p className="notice notice-warn">
          The engine ended by itself. The next load of the model attaches these SAEs again:{" "}
          {to_restore.map(({ sae_id, layer }) => `${nameOf(sae_id, records)} at layer ${layer}`).join(", ")}.
        </p>
      )}
      {vram_warning && (
        <p className="notice notice-warn">
          The attached SAEs take {mebibytes(total_memory_usage_mb)}, more than the {mebibytes(vram_envelope_mb)} that the
          operator set aside for them (MULTISAE_VRAM_ENVELOPE_MB).
        </p>
      )}
      <ul className="records attached">
        {entries.map((entry, place) => (
          <AttachedSae
            key={`${entry.sae_id}@${entry.layer}`}
            entry={entry}
            record={records.find(({ id }) => id === entry.sae_id)}
            values={valuesOf(entry, place, steered)}
          />
        ))}
      </ul>
    </div>
  );
}

function AttachedSae({ entry, record, values }: { entry: Attached; record: Sae | undefined; values: number }) {
  const client = useQueryClient();
  const [isAsking, setAsking] = useState(false);
  const away = useMutation({
    mutationFn: () => detach(entry.sae_id),
    onSuccess: () => notify(`${name} is detached.`),
    onSettled: () =>
      Promise.all(
        ["attachments", "saes", "steering", "models", "health"].map((noun) => client.invalidateQueries({ queryKey: [noun] })),
      ),
  });
  const name = record?.name ?? entry.sae_id;
  return (
    <li className="record" aria-label={`${name} at layer ${entry.layer}`} data-current>
      <div className="record-head">
        <h3>{name}</h3>
        <span className="tag">layer {entry.layer}</span>
        <button
          type="button"
          disabled={away.isPending}
          aria-label={`${away.isPending ? "Detaching" : "Detach"} ${name}`}
          onClick={() => (values > 0 ? setAsking(true) : away.mutate())}
        >
          {away.isPending ? "Detaching" : "Detach"}
        </button>
      </div>
      <Facts
        facts={[
          ["site", entry.site],
          ["module", <code key="module">{entry.layer_module_path}</code>],
          ["features", record?.d_sae ? count(record.d_sae) : null],
          ["held as", entry.dtype],
          ["memory", mebibytes(entry.memory_usage_mb)],
          ["trained on", trainedOn(record)],
          ["steered passes", count(entry.steering_apply_count)],
        ]}
      />
      {[...entry.warnings, ...(entry.is_calibrated ? [] : [NOT_CALIBRATED])].map((warning) => (
        <p key={warning} className="notice notice-warn">
          {warning}
        </p>
      ))}
      <CheckFigures
        known={{
          ...{ check: entry.check, over: entry.over_corpus, k: entry.k },
          claimedL0: record?.average_l0 ?? null,
        }}
      />
      {away.error !== null && <ErrorNotice error={away.error} />}
      <Confirm title={`Detach ${name}?`} action="Detach" isOpen={isAsking} onClose={() => setAsking(false)} onConfirm={() => away.mutate()}>
        <p>
          {values} {values === 1 ? "steering value of this SAE is" : "steering values of this SAE are"} cleared. Requests in
          flight end first.
        </p>
      </Confirm>
    </li>
  );
}

const NOT_CALIBRATED =
  "The SAE was trained on scaled activations, and its files do not give the scale. Steering strengths differ from those of its authors by an unknown factor.";

function trainedOn(record: Sae | undefined): string | null {
  const layer = record?.trained_layer ?? null;
  const parts = [record?.trained_on ?? null, layer === null ? null : `layer ${layer}`].filter((part) => part !== null);
  return parts.length === 0 ? null : parts.join(", ");
}

function nameOf(id: string, records: readonly Sae[]): string {
  return records.find((record) => record.id === id)?.name ?? id;
}

function valuesOf(entry: Attached, place: number, steered: Steering | undefined): number {
  const values = place === 0 ? steered?.values : steered?.others?.[`${entry.sae_id}@${entry.layer}`];
  return Object.values(values ?? {}).filter((value) => value !== 0).length;
}
