// The live values of one SAE, as the service answers them. Each change is sent when the slider is released.
import { useState } from "react";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { labels } from "../../api/documents";
import { FeatureRow } from "../../parts/FeatureRow";
import { notifyError } from "../../parts/Notices";
import { Answered } from "../../parts/Panel";
import type { Place } from "../../rules/steer";
import { Near } from "./Near";
import type { Steer } from "./useSteer";

export function LiveRows({
  steer: { live, act },
  place,
  onNear,
}: {
  steer: Steer;
  place: Place;
  onNear: (place: Place, index: number, name: string) => void;
}) {
  // the service keeps no value of a feature that is switched off
  const [off, setOff] = useState<Readonly<Record<number, number>>>({});
  const values = live.data?.values ?? {};
  const rows = [...new Set([...Object.keys(values), ...Object.keys(off)].map(Number))].sort((a, b) => a - b);
  const known = useQuery({ ...labels(place.sae_id, rows), placeholderData: keepPreviousData }).data;
  const others = Object.entries(live.data?.others ?? {});
  const forget = (index: number) => setOff(({ [index]: _, ...rest }) => rest);
  const send = async (action: Parameters<typeof act>[0]) => {
    try {
      await act(action);
    } catch (error) {
      notifyError(error);
      throw error;
    }
  };
  const put = async (index: number, value: number) => {
    await send((on) => on().set(index, value));
    forget(index);
  };
  const turn = (index: number, isOn: boolean) => {
    const value = values[index] ?? 0;
    if (isOn) return put(index, off[index] ?? value);
    setOff({ ...off, [index]: value });
    return send((on) => on().set(index, 0));
  };
  return (
    <Answered query={live}>
      {(state) => (
        <>
          <label className="switch">
            <input
              type="checkbox"
              role="switch"
              checked={state.enabled}
              onChange={(event) => quietly(send((on) => on().enable(event.target.checked)))}
            />
            Steering is {state.enabled ? "on" : "off"} for everyone
          </label>
          {rows.length === 0 && (
            <p className="empty">No live value at this SAE. Add a feature: its value then acts on every request.</p>
          )}
          <ul className="feature-rows">
            {rows.map((index) => {
              const label = known?.get(index) ?? null;
              const isOff = off[index] !== undefined;
              const value = isOff ? (off[index] ?? 0) : (values[index] ?? 0);
              return (
                <FeatureRow
                  key={index}
                  feature={{ index, label, layer: place.layer, value, isOn: !isOff && value !== 0 }}
                  place={<Near index={index} place={place} label={label} onNear={onNear} />}
                  onValue={(next) => put(index, next)}
                  onSwitch={(isOn) => quietly(turn(index, isOn))}
                  onRemove={() => {
                    forget(index);
                    quietly(send((on) => on().remove(index)));
                  }}
                />
              );
            })}
          </ul>
          {others.map(([key, map]) => (
            <p key={key} className="quiet">
              Beside them, {Object.keys(map).length} live {Object.keys(map).length === 1 ? "value" : "values"} at{" "}
              <code>{key}</code>.
            </p>
          ))}
        </>
      )}
    </Answered>
  );
}

/** The refusal is shown as a notice already. */
function quietly(promise: Promise<unknown>): void {
  promise.catch(() => undefined);
}
