// The clusters or the circuits with a switch each: whether an operator wants them to be sensed.
import type { ReactNode } from "react";

export interface Intent {
  id: string;
  name: string;
  isOn: boolean;
  isArmed: boolean;
}

export function Intents({
  items,
  isPending,
  onSwitch,
  empty,
}: {
  items: readonly Intent[];
  isPending: boolean;
  onSwitch: (id: string, isOn: boolean) => void;
  empty: ReactNode;
}) {
  if (items.length === 0) return <p className="empty">{empty}</p>;
  return (
    <ul className="lines intents">
      {items.map(({ id, name, isOn, isArmed }) => (
        <li key={id}>
          <label className="switch">
            <input
              type="checkbox"
              role="switch"
              checked={isOn}
              disabled={isPending}
              onChange={(event) => onSwitch(id, event.target.checked)}
            />
            {name}
          </label>
          <span className={`status ${isArmed ? "good" : ""}`}>
            <span aria-hidden="true">{isArmed ? "●" : "○"}</span> {isArmed ? "armed" : isOn ? "enabled" : "not enabled"}
          </span>
        </li>
      ))}
    </ul>
  );
}
