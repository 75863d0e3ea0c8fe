// What can be changed of a profile or a cluster, in a dialog: name, description, its SAE, and the values of a profile.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { request, type Body } from "../../api/client";
import { attachments } from "../../api/queries";
import { Dialog } from "../../parts/Dialog";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { lines, readLines } from "../../rules/valueLines";
import { useAction } from "./actions";

interface Saved {
  id: string;
  name: string;
  description: string | null;
  sae_id: string | null;
  layer: number | null;
  /** The values of a profile; those of a cluster belong to its document. */
  steering?: Readonly<Record<string, number>>;
}
type Changes = Body<"/api/profiles/{profile_id}", "patch">;

export function Edit({ saved }: { saved: Saved }) {
  const [isOpen, setOpen] = useState(false);
  const close = () => setOpen(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Edit
      </button>
      <Dialog title={`Edit ${saved.name}`} isOpen={isOpen} onClose={close}>
        <Form saved={saved} onClose={close} />
      </Dialog>
    </>
  );
}

const KEEP = "keep";
const ANY = "any";

function Form({ saved, onClose }: { saved: Saved; onClose: () => void }) {
  const { id, steering } = saved;
  const [name, setName] = useState(saved.name);
  const [description, setDescription] = useState(saved.description ?? "");
  const [place, setPlace] = useState(KEEP);
  const [text, setText] = useState(() => lines(steering ?? {}));
  const read = readLines(text);
  const change = useAction(
    (body: Changes) => request("patch", "/api/profiles/{profile_id}", { path: { profile_id: id }, body }),
    { isShown: true, onSuccess: onClose },
  );
  const save = () =>
    change.mutate({
      ...(name === saved.name ? {} : { name }),
      ...(description === (saved.description ?? "") ? {} : { description: description === "" ? null : description }),
      ...placed(place, steering !== undefined),
      ...(steering === undefined || read.values === null || text === lines(steering) ? {} : { steering: read.values }),
    });
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        if (read.fault === null) save();
      }}
    >
      <label className="field">
        Name
        <input required maxLength={100} value={name} onChange={(event) => setName(event.target.value)} />
      </label>
      <label className="field">
        Description
        <textarea rows={3} maxLength={500} value={description} onChange={(event) => setDescription(event.target.value)} />
      </label>
      <Place saved={saved} value={place} onChange={setPlace} />
      {steering !== undefined && (
        <label className="field">
          Values at intensity 1, a feature a line
          <textarea
            rows={6}
            className="lines-of-values"
            spellCheck={false}
            aria-invalid={read.fault !== null || undefined}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
          {read.fault !== null && <span role="alert">{read.fault}</span>}
        </label>
      )}
      {change.error !== null && <ErrorNotice error={change.error} />}
      <div className="row end">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" className="primary" disabled={change.isPending || read.fault !== null}>
          Save
        </button>
      </div>
    </form>
  );
}

/** The choice of the SAE at which the values are applied. */
function Place({ saved, value, onChange }: { saved: Saved; value: string; onChange: (value: string) => void }) {
  const entries = useQuery(attachments).data?.entries ?? [];
  const isProfile = saved.steering !== undefined;
  const now = saved.sae_id === null ? "any SAE" : saved.sae_id;
  return (
    <label className="field">
      SAE
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        <option value={KEEP}>
          {now}
          {saved.layer !== null && ` at layer ${saved.layer}`}, as it is
        </option>
        {isProfile && (saved.sae_id !== null || saved.layer !== null) && <option value={ANY}>any attached SAE</option>}
        {entries
          .filter((one) => one.sae_id !== saved.sae_id || (isProfile && one.layer !== saved.layer))
          .map(({ sae_id, layer }) => (
            <option key={`${sae_id}@${layer}`} value={`${sae_id}@${layer}`}>
              {sae_id} at layer {layer}
            </option>
          ))}
      </select>
    </label>
  );
}

/** The fields of a choice. The layer of a cluster belongs to its document. */
function placed(place: string, isProfile: boolean): Changes {
  if (place === KEEP) return {};
  if (place === ANY) return { sae_id: null, layer: null };
  const at = place.lastIndexOf("@");
  const sae_id = place.slice(0, at);
  return isProfile ? { sae_id, layer: Number(place.slice(at + 1)) } : { sae_id };
}
