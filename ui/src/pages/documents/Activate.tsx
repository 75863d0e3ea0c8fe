// The button that activates or deactivates a profile or a cluster. Where this ends what others started, it asks first.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { claims, type Claim } from "../../api/documents";
import { health } from "../../api/queries";
import { Confirm } from "../../parts/Confirm";
import { useLiveCount } from "./useLive";

export function Activate({
  name,
  isActive,
  isPending,
  working,
  onActivate,
  onDeactivate,
}: {
  name: string;
  isActive: boolean;
  isPending: boolean;
  /** What is being done, where something is. */
  working: string | null;
  onActivate: () => void;
  onDeactivate: () => void;
}) {
  const [isAsking, setAsking] = useState(false);
  const held = useQuery(claims).data ?? [];
  const other = useQuery(health).data?.active_profile ?? null;
  const count = useLiveCount() ?? 0;
  // values of an active profile or cluster are saved there; others would be lost
  const isByHand = count > 0 && other === null && held.length === 0;
  if (isActive) {
    return (
      <button type="button" disabled={isPending} onClick={onDeactivate}>
        {working ?? "Deactivate"}
      </button>
    );
  }
  return (
    <>
      <button
        type="button"
        className="primary"
        disabled={isPending}
        onClick={() => (held.length > 0 || isByHand ? setAsking(true) : onActivate())}
      >
        {working ?? "Activate"}
      </button>
      <Confirm title={`Activate ${name}?`} action="Activate" isOpen={isAsking} onConfirm={onActivate} onClose={() => setAsking(false)}>
        <p>
          <b>{name}</b> replaces all values that steer now.
        </p>
        {isByHand && (
          <p>
            {count === 1
              ? "One value was set by hand. It is lost unless you save it as a profile first."
              : `${count} values were set by hand. They are lost unless you save them as a profile first.`}
          </p>
        )}
        {held.length > 0 && (
          <>
            <p>These circuits are deactivated:</p>
            <ul className="bullets">
              {byCircuit(held).map(([id, circuit, layers]) => (
                <li key={id}>
                  <b>{circuit}</b>, on {layers.length === 1 ? "layer" : "layers"} {layers.join(", ")}
                </li>
              ))}
            </ul>
          </>
        )}
      </Confirm>
    </>
  );
}

function byCircuit(held: readonly Claim[]): [string, string, number[]][] {
  const ids = [...new Set(held.map((claim) => claim.circuit_id))];
  return ids.map((id) => {
    const own = held.filter((claim) => claim.circuit_id === id);
    return [id, own[0]?.circuit_name ?? id, own.map((claim) => claim.layer)];
  });
}
