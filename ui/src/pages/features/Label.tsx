// The label of a feature as the heading, and the form that changes it.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { labelling, removeLabel, saveLabel, type Feature } from "../../api/features";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";

/** The most characters of a label. */
const LONGEST = 500;

export function Label({ feature, place }: { feature: Feature; place: string }) {
  const [isEdited, setEdited] = useState(false);
  if (isEdited) return <Edit feature={feature} place={place} onDone={() => setEdited(false)} />;
  return (
    <div className="feature-title">
      <h1>
        {feature.label ?? <span className="quiet-title">No label</span>} <span className="place">{place}</span>
      </h1>
      <button type="button" className="small" onClick={() => setEdited(true)}>
        {feature.label === null ? "Give it a label" : "Change the label"}
      </button>
    </div>
  );
}

function Edit({ feature, place, onDone }: { feature: Feature; place: string; onDone: () => void }) {
  const { sae_id, feature_idx, label } = feature;
  const [draft, setDraft] = useState(label ?? "");
  const client = useQueryClient();
  const save = useMutation({
    mutationFn: (text: string): Promise<unknown> =>
      text === "" ? removeLabel(sae_id, feature_idx) : saveLabel(sae_id, feature_idx, text),
    // labels stand in the answers about features, about monitoring, and in its records
    onSuccess: () =>
      Promise.all(
        ["features", "monitoring", "readings"].map((noun) => client.invalidateQueries({ queryKey: [noun] })),
      ),
  });
  const send = (text: string) => save.mutate(text, { onSuccess: onDone });
  const text = draft.trim();
  return (
    <form
      className="label-form"
      onSubmit={(event) => {
        event.preventDefault();
        send(text);
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") onDone();
      }}
    >
      <h1 className="only-read">
        {label ?? "No label"} {place}
      </h1>
      <label className="field">
        Label of {place}
        <input autoFocus maxLength={LONGEST} value={draft} onChange={(event) => setDraft(event.target.value)} />
      </label>
      <div className="row">
        <button type="submit" className="primary" disabled={text === "" || text === label || save.isPending}>
          Save
        </button>
        <button type="button" onClick={onDone}>
          Cancel
        </button>
        {label !== null && (
          <button type="button" className="danger" disabled={save.isPending} onClick={() => send("")}>
            Remove the label
          </button>
        )}
      </div>
      {save.error !== null && <ErrorNotice error={save.error} />}
      {text !== "" && <CopyCode sent={labelling(sae_id, feature_idx, text)} />}
    </form>
  );
}
