// Activates and deactivates a circuit. Where the service asks for an acknowledgement, a dialog shows what it says.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import type { Circuit } from "../../api/documents";
import { health } from "../../api/queries";
import { Confirm } from "../../parts/Confirm";
import { notifyError } from "../../parts/Notices";
import { Rung } from "../../parts/Rung";
import { contention } from "../../rules/contention";
import { ApiError } from "../../rules/errors";
import { useAction } from "../documents/actions";
import { useUnclaimedCount } from "../documents/useLive";
import { ContentionDialog } from "./ContentionDialog";

export interface Allowed {
  acknowledge_unvalidated: boolean;
  allow_layer_overlap: boolean;
}
const NOTHING: Allowed = { acknowledge_unvalidated: false, allow_layer_overlap: false };

export function Serve({
  circuit,
  isBusy,
  onWarnings,
  onOpen,
}: {
  circuit: Circuit;
  isBusy: boolean;
  onWarnings: (warnings: readonly string[]) => void;
  onOpen: (id: string) => void;
}) {
  const path = { circuit_id: circuit.id };
  const [asked, setAsked] = useState<{ error: ApiError; allowed: Allowed } | null>(null);
  const activate = useAction(
    (allowed: Allowed) => request("post", "/api/circuits/{circuit_id}/activate", { path, query: allowed }),
    { isShown: true, onSuccess: (done) => onWarnings(done.warnings) },
  );
  const end = useAction(() => request("post", "/api/circuits/{circuit_id}/deactivate", { path }), {
    onSuccess: () => onWarnings([]),
  });
  const start = (allowed: Allowed) =>
    activate.mutate(allowed, {
      onError: (error) => (error instanceof ApiError && ASKED.has(error.code) ? setAsked({ error, allowed }) : notifyError(error)),
    });
  const isPending = isBusy || activate.isPending || end.isPending;
  const working = activate.isPending ? "Activating" : end.isPending ? "Deactivating" : null;
  const close = () => setAsked(null);
  // the circuit adds its values to those of a profile and to those that were set by hand
  const count = useUnclaimedCount();
  const profile = useQuery(health).data?.active_profile ?? null;
  const [isBeside, setBeside] = useState(false);
  return (
    <>
      {circuit.is_active ? (
        <button type="button" disabled={isPending} onClick={() => end.mutate(undefined)}>
          {working ?? "Deactivate"}
        </button>
      ) : (
        <button type="button" className="primary" disabled={isPending} onClick={() => (count > 0 ? setBeside(true) : start(NOTHING))}>
          {working ?? "Activate"}
        </button>
      )}
      <Confirm
        title={`Activate ${circuit.name} beside what steers now?`}
        action="Activate"
        isOpen={isBeside}
        onClose={() => setBeside(false)}
        onConfirm={() => start(NOTHING)}
      >
        <p>
          {count === 1 ? "1 value steers" : `${count} values steer`} now
          {profile === null
            ? ", set by hand"
            : `, of the ${profile.source_kind === "cluster" ? "cluster" : "profile"} ${profile.name} or set by hand`}
          .{" "}
          {count === 1 ? "It stays" : "They stay"}, and <b>{circuit.name}</b> adds its own values to{" "}
          {count === 1 ? "it" : "them"}.
        </p>
      </Confirm>
      <Confirm
        title={`Activate ${circuit.name} all the same?`}
        action="Activate all the same"
        isOpen={asked?.error.code === UNVALIDATED}
        onClose={close}
        onConfirm={() => start({ ...NOTHING, ...asked?.allowed, acknowledge_unvalidated: true })}
      >
        <p>
          <Rung rung={circuit.rung} phrase={circuit.rung_language} />
        </p>
        <p>The service says: {asked?.error.message}</p>
        {circuit.rung_next_step !== null && <p className="quiet">Next: {circuit.rung_next_step}</p>}
      </Confirm>
      {asked?.error.code === CONTENDED && (
        <ContentionDialog
          name={circuit.name}
          message={asked.error.message}
          contention={contention(asked.error.details)}
          onOpen={onOpen}
          onClose={close}
          onConfirm={() => start({ ...asked.allowed, allow_layer_overlap: true })}
        />
      )}
    </>
  );
}

const UNVALIDATED = "UNVALIDATED_CIRCUIT";
const CONTENDED = "CIRCUIT_LAYER_CONTENTION";
const ASKED = new Set([UNVALIDATED, CONTENDED]);
