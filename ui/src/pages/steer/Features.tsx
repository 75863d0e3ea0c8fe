// The features that steer, and for whom: only for the requests of this page, or live for everyone.
import { useState, type RefObject } from "react";
import { Link } from "react-router";
import { Confirm } from "../../parts/Confirm";
import { notifyError } from "../../parts/Notices";
import { Segmented } from "../../parts/Segmented";
import { keyOf, steers, valuesOf, type Chosen } from "../../rules/steer";
import { AddFeature } from "./AddFeature";
import { LiveRows } from "./LiveRows";
import { PageRows } from "./PageRows";
import { ServingDial } from "./ServingDial";
import type { Steer } from "./useSteer";

const REACHES = [
  { value: "page", label: "Only this page", title: "The values travel with each request of this page" },
  { value: "live", label: "Live for everyone", title: "The values are set in the service" },
] as const;

export function Features({ steer, find }: { steer: Steer; find: RefObject<HTMLInputElement | null> }) {
  const { state, alter, change, place, places } = steer;
  const [near, setNear] = useState<{ index: number; name: string } | null>(null);
  const look = (index: number, name: string) => {
    setNear({ index, name });
    find.current?.focus();
  };
  return (
    <section className="panel features-part" aria-label="Features" data-reach={state.for}>
      <div className="panel-head">
        <h2>Features</h2>
        {places.length > 1 && place !== null && (
          <select
            aria-label="SAE"
            value={keyOf(place)}
            onChange={(event) => change({ sae: event.target.value, f: [] })}
          >
            {places.map((entry) => (
              <option key={keyOf(entry)} value={keyOf(entry)}>
                layer {entry.layer}, {entry.sae_id}
              </option>
            ))}
          </select>
        )}
      </div>
      <Segmented
        label="For whom the values are"
        options={REACHES}
        value={state.for}
        onChange={(reach) => alter({ for: reach })}
      />
      <p className="reach">{state.for === "page" ? <PageWords steer={steer} /> : <LiveWords steer={steer} />}</p>
      <OtherLink steer={steer} />
      {state.for === "live" && <ServingDial steer={steer} />}
      {place === null ? (
        <p className="empty">
          No SAE is attached, so there are no features. <Link to="/saes">Attach an SAE</Link>.
        </p>
      ) : (
        <>
          <AddFeature steer={steer} place={place} near={near} onNear={setNear} input={find} />
          {state.for === "page" ? (
            <PageRows steer={steer} place={place} onNear={look} />
          ) : (
            <LiveRows steer={steer} place={place} onNear={look} />
          )}
          <Foot steer={steer} />
        </>
      )}
    </section>
  );
}

function PageWords({ steer: { live } }: { steer: Steer }) {
  const others = live.data?.enabled === true ? countOf(live.data) : 0;
  return (
    <>
      <b>Nobody else is touched.</b> The values travel with the requests of this page only.
      {others > 0 &&
        ` ${others} live ${others === 1 ? "value steers" : "values steer"} other requests, not those of this page.`}
    </>
  );
}

function LiveWords({ steer: { live } }: { steer: Steer }) {
  if (live.data?.enabled === false) {
    return (
      <>
        <b>Live steering is off.</b> No request is steered until a value is set or steering is switched on.
      </>
    );
  }
  return (
    <>
      <b>Everybody is steered.</b> Each value acts at once on every request to this service, also on those that run.
    </>
  );
}

/** Says where the link was made with another model or SAE than those that are here. */
function OtherLink({ steer: { state, model, places } }: { steer: Steer }) {
  const isOtherModel = state.model !== "" && model !== null && model.name !== state.model;
  const isOtherSae = state.sae !== "" && places.length > 0 && !places.some((entry) => keyOf(entry) === state.sae);
  if (!isOtherModel && !isOtherSae) return null;
  return (
    <p className="notice notice-warn">
      This view was made with {isOtherModel ? `the model ${state.model}` : `the SAE ${state.sae}`}, which is not here
      now. The same numbers may mean other features.
    </p>
  );
}

function Foot({ steer }: { steer: Steer }) {
  const { state, change, alter, setFeatures, act, live } = steer;
  const [isAsking, setAsking] = useState(false);
  const values = valuesOf(state.f ?? []);
  const own = Object.entries(live.data?.values ?? {}).filter(([, value]) => value !== 0);
  const isEmpty = state.for === "page" ? (state.f ?? []).length === 0 : own.length === 0;
  return (
    <>
      <div className="features-foot">
        <label className="switch">
          <input
            type="checkbox"
            role="switch"
            checked={state.auto}
            onChange={(event) => change({ auto: event.target.checked })}
          />
          Compare anew after each change
        </label>
        {!isEmpty && state.for === "page" && (
          <span className="row">
            <button
              type="button"
              className="small"
              disabled={!steers(state, live.data)}
              onClick={() => setAsking(true)}
            >
              Make live…
            </button>
            <button type="button" className="small" onClick={() => setFeatures([])}>
              Remove all
            </button>
          </span>
        )}
        {!isEmpty && state.for === "live" && (
          <button
            type="button"
            className="small"
            onClick={() => alter({ for: "page", f: own.map(([index, value]): Chosen => [Number(index), value, 1]) })}
          >
            Take over to this page
          </button>
        )}
      </div>
      <Confirm
        title="Steer everybody?"
        action="Make live"
        isOpen={isAsking}
        onClose={() => setAsking(false)}
        onConfirm={() => {
          act((on) => on.setAll(values), { for: "live" }).catch(notifyError);
        }}
      >
        <p>
          {Object.keys(values).length} {Object.keys(values).length === 1 ? "value is" : "values are"} set in the
          service. From then on every request of everybody is steered, until the values are removed.
        </p>
      </Confirm>
    </>
  );
}

function countOf({
  values,
  others,
}: {
  values: Record<string, number>;
  others?: Record<string, Record<string, number>>;
}): number {
  return [values, ...Object.values(others ?? {})].flatMap((map) => Object.values(map)).filter((value) => value !== 0)
    .length;
}
