// The dial of a circuit. The service sets the intensity of the one circuit that serves, so it is off for others.
import { useState } from "react";
import { request } from "../../api/client";
import type { Circuit } from "../../api/documents";
import { Dial } from "../../parts/Dial";
import { decimal } from "../../rules/bytes";
import { useAction } from "../documents/actions";

export function CircuitDial({
  circuit,
  range,
  isAlone,
  onWarnings,
}: {
  circuit: Circuit;
  range: readonly [number, number];
  isAlone: boolean;
  onWarnings: (warnings: readonly string[]) => void;
}) {
  const [isAcknowledged, setAcknowledged] = useState(false);
  const dial = useAction(
    (intensity: number) =>
      request("put", "/api/circuits/active/intensity", {
        body: { intensity, reapply: true, acknowledge_unvalidated: isAcknowledged },
      }),
    {
      onSuccess: ({ warnings, superseded }) =>
        onWarnings(superseded ? [...warnings, "The steering was changed again since the dial was set."] : warnings),
    },
  );
  const isServed = circuit.is_active && isAlone;
  const needsWord = isServed && !circuit.validated && !isAcknowledged;
  return (
    <div className="flow">
      <Dial
        name={circuit.name}
        value={circuit.intensity}
        range={range}
        isDisabled={!isServed || needsWord}
        onCommit={(value) => dial.mutateAsync(value)}
      />
      <p className="quiet">
        The dial goes from {decimal(range[0])} to {decimal(range[1])}; 0 switches off all steering of the circuit.
        {!circuit.is_active && " It turns while the circuit is active."}
        {circuit.is_active && !isAlone && " It turns while one circuit is active; several are now."}
        {circuit.serving_mode === "slice_fallback" && " One layer serves as a cluster: the dial is saved, and counts with the next activation."}
      </p>
      {isServed && !circuit.validated && (
        <label className="row">
          <input type="checkbox" checked={isAcknowledged} onChange={(event) => setAcknowledged(event.target.checked)} />
          <span>
            Turn the dial although the evidence is <b>{circuit.rung_language}</b>
          </span>
        </label>
      )}
    </div>
  );
}
