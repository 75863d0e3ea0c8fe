// The edits that act on the requests of everybody.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { intervene, liveInterventions } from "../../../api/interventions";
import { Confirm } from "../../../parts/Confirm";
import { notifyError } from "../../../parts/Notices";
import { Answered } from "../../../parts/Panel";
import { sentEdits, type Edit } from "../../../rules/edits";
import { sentence } from "../../../rules/editWords";
import type { Interventions } from "../../../rules/interventions";
import type { Steer } from "../useSteer";
import { useNames } from "./useNames";

/** The live edits in words, and their end. */
export function LiveEdits({ steer }: { steer: Steer }) {
  const query = useQuery(liveInterventions);
  const put = usePut(steer);
  const edits = (query.data?.edits ?? []).map(shown);
  const names = useNames(edits);
  return (
    <section className="edits" aria-label="Live edits">
      <div className="row spread">
        <h3>Live edits</h3>
        {edits.length > 0 && (
          <button type="button" className="small" onClick={() => put({ edits: [] })}>
            Clear the live edits
          </button>
        )}
      </div>
      <Answered
        query={query}
        isEmpty={(live) => live.edits.length === 0}
        empty="No edit acts on the requests of everybody. Make some under Only this page, then make them live."
      >
        {(live) => (
          <>
            <ol className="edit-rows">
              {edits.map((edit, place) => (
                <li key={place}>
                  <p>{sentence(edit, names)}</p>
                </li>
              ))}
            </ol>
            <p className="quiet">
              {live.mode === "replace" ? "They stand in the place of the live values." : "They act beside the live values."}
              {live.preserve_norm && " The length of what is edited is kept."}
              {!live.enabled && " Steering is switched off, so they do nothing now."}
            </p>
          </>
        )}
      </Answered>
    </section>
  );
}

/** Makes the edits of the page live, after a question. */
export function MakeEditsLive({ steer }: { steer: Steer }) {
  const [isAsking, setAsking] = useState(false);
  const put = usePut(steer);
  const edits = sentEdits(steer.state.e);
  const count = `${edits.length} ${edits.length === 1 ? "edit" : "edits"}`;
  return (
    <>
      <button type="button" className="small" onClick={() => setAsking(true)}>
        Make the edits live…
      </button>
      <Confirm
        title="Edit the requests of everybody?"
        action="Make live"
        isOpen={isAsking}
        onClose={() => setAsking(false)}
        onConfirm={() => put({ edits, ...(steer.state.norm ? { preserve_norm: true } : {}) }, "live")}
      >
        <p>
          {count} of this page replace the live edits, and act on every request of everybody until they are cleared.
        </p>
      </Confirm>
    </>
  );
}

function usePut({ act }: Steer) {
  const client = useQueryClient();
  return (wanted: Interventions, reach?: "live") => {
    const change = async () => {
      await intervene(wanted);
      await client.invalidateQueries({ queryKey: ["steering"] });
    };
    act(change, reach === undefined ? {} : { for: reach }).catch(notifyError);
  };
}

/** A live edit as the page says it. A direction that was sent inside a request has no name. */
function shown(edit: Record<string, unknown>): Edit {
  const name = (vector: unknown) => (typeof vector === "object" ? "a direction without a name" : vector);
  const { vector, to, ...rest } = edit;
  const named = { ...(vector === undefined ? {} : { vector: name(vector) }), ...(to === undefined ? {} : { to: name(to) }) };
  return { ...rest, ...named } as Edit;
}
