// The edits of this page in words. They stand in the link, and travel with each request.
import { useState } from "react";
import { EDITS_MAXIMUM, sentEdits, type PageEdit } from "../../../rules/edits";
import { sentence } from "../../../rules/editWords";
import { Dialog } from "../../../parts/Dialog";
import type { Steer } from "../useSteer";
import { SaveProfile } from "../SaveProfile";
import { EditForm } from "./EditForm";
import { MakeEditsLive } from "./LiveEdits";
import { useNames } from "./useNames";

export function Edits({ steer }: { steer: Steer }) {
  const { state, alter } = steer;
  const { e: edits, norm } = state;
  const names = useNames(edits);
  // the place of the edit that is changed; one behind the last is a new one
  const [at, setAt] = useState<number | null>(null);
  const set = (e: readonly PageEdit[]) => alter({ e });
  const save = (edit: PageEdit) => {
    set(at === null || at >= edits.length ? [...edits, edit] : edits.map((one, place) => (place === at ? edit : one)));
    setAt(null);
  };
  return (
    <section className="edits" aria-label="Edits">
      <div className="row spread">
        <h3>Edits</h3>
        <button
          type="button"
          className="small"
          disabled={edits.length >= EDITS_MAXIMUM}
          onClick={() => setAt(edits.length)}
        >
          Add an edit…
        </button>
      </div>
      {edits.length === 0 ? (
        <p className="quiet">Hold, bound, scale or take out a feature or a vector, where and when you say.</p>
      ) : (
        <ol className="edit-rows">
          {edits.map((edit, place) => {
            const words = sentence(edit, names);
            const { off, ...on } = edit;
            return (
              <li key={place} data-off={off === 1 || undefined}>
                <p>{words}</p>
                <div className="row">
                  <label className="switch">
                    <input
                      type="checkbox"
                      role="switch"
                      checked={off !== 1}
                      onChange={(event) =>
                        set(edits.map((one, other) => (other !== place ? one : event.target.checked ? on : { ...on, off: 1 })))
                      }
                    />
                    <span aria-hidden="true">{off === 1 ? "off" : "on"}</span>
                    <span className="only-read">Use: {words}</span>
                  </label>
                  <button type="button" className="small" aria-label={`Change: ${words}`} onClick={() => setAt(place)}>
                    Change
                  </button>
                  <button
                    type="button"
                    className="small"
                    aria-label={`Remove: ${words}`}
                    onClick={() => set(edits.filter((_, other) => other !== place))}
                  >
                    ✕
                  </button>
                </div>
              </li>
            );
          })}
        </ol>
      )}
      {sentEdits(edits).length > 0 && (
        <div className="row">
          <MakeEditsLive steer={steer} />
          <SaveProfile steer={steer} />
        </div>
      )}
      {edits.length > 0 && (
        <label className="switch">
          <input
            type="checkbox"
            role="switch"
            checked={norm}
            onChange={(event) => alter({ norm: event.target.checked })}
          />
          Keep the length of what is edited
        </label>
      )}
      <Dialog
        title={at !== null && at < edits.length ? "Change the edit" : "Add an edit"}
        isOpen={at !== null}
        onClose={() => setAt(null)}
      >
        <EditForm steer={steer} edit={at === null ? undefined : edits[at]} onSave={save} onClose={() => setAt(null)} />
      </Dialog>
    </section>
  );
}
