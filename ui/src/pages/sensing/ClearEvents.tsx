// Deletes the recorded events that the filter shows.
import { useState } from "react";
import { request } from "../../api/client";
import { Confirm } from "../../parts/Confirm";
import { notify } from "../../parts/Notices";
import { count } from "../../rules/bytes";
import { useAction } from "../documents/actions";

export function ClearEvents({
  kind,
  of,
  name,
  total,
}: {
  kind: "all" | "cluster" | "circuit";
  of: string;
  name: string | null;
  total: number;
}) {
  const [isAsking, setAsking] = useState(false);
  const clear = useAction(
    async () => {
      let deleted = 0;
      if (kind !== "circuit") {
        const query = kind === "cluster" && of !== "" ? { profile_id: of } : {};
        deleted += (await request("delete", "/api/sensing/events", { query })).deleted;
      }
      if (kind !== "cluster") {
        const query = kind === "circuit" && of !== "" ? { circuit_id: of } : {};
        deleted += (await request("delete", "/api/circuit-sensing/events", { query })).deleted;
      }
      return deleted;
    },
    { onSuccess: (deleted) => notify(`${count(deleted)} ${deleted === 1 ? "event is" : "events are"} deleted.`) },
  );
  const whose = kind === "all" ? "of all clusters and circuits" : of === "" ? `of all ${kind}s` : `of ${name ?? of}`;
  return (
    <>
      <button type="button" className="danger" disabled={total === 0 || clear.isPending} onClick={() => setAsking(true)}>
        {clear.isPending ? "Deleting" : "Delete events"}
      </button>
      <Confirm
        title={`Delete ${count(total)} ${total === 1 ? "event" : "events"}?`}
        action="Delete"
        isDangerous
        isOpen={isAsking}
        onConfirm={() => clear.mutate(undefined)}
        onClose={() => setAsking(false)}
      >
        <p>The recorded events {whose} are deleted, with the text around them.</p>
      </Confirm>
    </>
  );
}
