// The values that steer now, saved as a profile under a proposed name.
import { useState } from "react";
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { labels } from "../../api/documents";
import { attachments, steering } from "../../api/queries";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { proposedName } from "../../rules/proposal";
import { useAction } from "../documents/actions";
import { useLiveCount } from "../documents/useLive";

export function SaveCurrent({ taken, onSaved }: { taken: readonly string[]; onSaved: (id: string) => void }) {
  const [name, setName] = useState<string | null>(null);
  const [description, setDescription] = useState("");
  const count = useLiveCount() ?? 0;
  const proposal = useProposal(taken);
  const save = useAction(
    () =>
      request("post", "/api/profiles/save-current", {
        body: { name: name ?? proposal, description: description === "" ? null : description },
      }),
    {
      isShown: true,
      onSuccess: (saved) => {
        setName(null);
        setDescription("");
        notify(`The profile ${saved.name} is saved.`);
        onSaved(saved.id);
      },
    },
  );
  return (
    <Panel title="Save what steers now">
      {count === 0 ? (
        <p className="quiet">
          Nothing steers now. <Link to="/steer">Set values on the page Steer.</Link>
        </p>
      ) : (
        <form
          className="flow"
          onSubmit={(event) => {
            event.preventDefault();
            save.mutate(undefined);
          }}
        >
          <label className="field">
            Name
            <input required maxLength={100} value={name ?? proposal} onChange={(event) => setName(event.target.value)} />
          </label>
          <label className="field">
            Description
            <input maxLength={500} value={description} onChange={(event) => setDescription(event.target.value)} />
          </label>
          {save.error !== null && <ErrorNotice error={save.error} />}
          <button type="submit" disabled={save.isPending}>
            {save.isPending ? "Saving" : `Save ${count} ${count === 1 ? "value" : "values"}`}
          </button>
        </form>
      )}
    </Panel>
  );
}

/** A name from the labels of the strongest features. */
function useProposal(taken: readonly string[]): string {
  const live = useQuery(steering).data;
  const first = useQuery(attachments).data?.entries[0];
  // the service saves values of one SAE only, so the place of the values is the one that has any
  const [place, values] =
    live === undefined || Object.keys(live.values).length > 0
      ? [first?.sae_id, live?.values ?? {}]
      : (Object.entries(live.others ?? {}).map(([key, other]) => [key.slice(0, key.lastIndexOf("@")), other] as const)[0] ?? [undefined, {}]);
  const named = useQuery(labels(place ?? null, Object.keys(values).map(Number))).data;
  return proposedName(values, named ?? new Map(), new Set(taken));
}
