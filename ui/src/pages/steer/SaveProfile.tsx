// The values of this page saved as a profile. They do not go live.
import { useId, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { labels, profiles } from "../../api/documents";
import { Dialog } from "../../parts/Dialog";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";
import { sentEdits } from "../../rules/edits";
import { sentence } from "../../rules/editWords";
import { proposedName } from "../../rules/proposal";
import { placeOf, valuesOf } from "../../rules/steer";
import { useAction } from "../documents/actions";
import { useNames } from "./edits/useNames";
import type { Steer } from "./useSteer";

export function SaveProfile({ steer }: { steer: Steer }) {
  const [isOpen, setOpen] = useState(false);
  const close = () => setOpen(false);
  return (
    <>
      <button type="button" className="small" onClick={() => setOpen(true)}>
        Save as profile…
      </button>
      <Dialog title="Save as a profile" isOpen={isOpen} onClose={close}>
        <Form steer={steer} onClose={close} />
      </Dialog>
    </>
  );
}

function Form({ steer: { state, model }, onClose }: { steer: Steer; onClose: () => void }) {
  const id = useId();
  const [name, setName] = useState<string | null>(null);
  const [wanted, setWanted] = useState<string | null>(null);
  const groups = Object.entries(valuesOf(state.f ?? []));
  const [sae, values] = groups.find(([key]) => key === wanted) ?? groups[0] ?? ["", {}];
  const place = placeOf(sae);
  const count = Object.keys(values).length;
  const edits = sentEdits(state.e);
  const known = useQuery(labels(place?.sae_id ?? null, Object.keys(values).map(Number))).data;
  const taken = useQuery(profiles).data?.profiles.map((profile) => profile.name) ?? [];
  const names = useNames(edits);
  const [first] = edits;
  const proposed = proposedName(values, known ?? new Map(), new Set(taken));
  const title = name ?? (proposed === "" && first !== undefined ? sentence(first, names).slice(0, 100) : proposed);
  const save = useAction(
    () =>
      request("post", "/api/profiles", {
        body: {
          name: title,
          ...(count > 0 ? { steering: values, ...place } : {}),
          ...(edits.length > 0 ? { edits: edits as never } : {}),
          ...(model === null ? {} : { model_id: String(model.id) }),
        },
      }),
    {
      isShown: true,
      onSuccess: (saved) => {
        notify(`The profile ${saved.name} is saved. It steers nobody until it is activated.`);
        onClose();
      },
    },
  );
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate(undefined);
      }}
    >
      {groups.length > 1 && (
        <label className="field" htmlFor={`${id}-sae`}>
          A profile holds the values of one SAE
          <select id={`${id}-sae`} value={sae} onChange={(event) => setWanted(event.target.value)}>
            {groups.map(([key, own]) => (
              <option key={key} value={key}>
                layer {placeOf(key)?.layer}, {placeOf(key)?.sae_id}: {Object.keys(own).length}{" "}
                {Object.keys(own).length === 1 ? "value" : "values"}
              </option>
            ))}
          </select>
        </label>
      )}
      <label className="field" htmlFor={`${id}-name`}>
        Name
        <input
          id={`${id}-name`}
          required
          maxLength={100}
          value={title}
          onChange={(event) => setName(event.target.value)}
        />
      </label>
      <p className="quiet">
        What is saved does not go live.
        {edits.length > 0 && state.norm && " That the length of what is edited is kept is no part of a profile."}
      </p>
      {save.error !== null && <ErrorNotice error={save.error} />}
      <p className="row">
        <button type="submit" className="primary" disabled={save.isPending || count + edits.length === 0}>
          Save {counted(count, "value", edits.length === 0)}
          {edits.length > 0 && `${count > 0 ? " and " : ""}${counted(edits.length, "edit", true)}`}
        </button>
        <button type="button" onClick={onClose}>
          Cancel
        </button>
      </p>
    </form>
  );
}

function counted(count: number, what: string, isAlways: boolean): string {
  return count === 0 && !isAlways ? "" : `${count} ${what}${count === 1 ? "" : "s"}`;
}
