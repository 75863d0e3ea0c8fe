// The features that steer, and for whom: only for the requests of this page, or live for everyone.
import { useState, type RefObject } from "react";
import { Link } from "react-router";
import { Confirm } from "../../parts/Confirm";
import { notifyError } from "../../parts/Notices";
import { Segmented } from "../../parts/Segmented";
import { keyOf, liveFeatures, placeOf, steers, switchedOn, valuesOf, type Place } from "../../rules/steer";
import { AddFeature } from "./AddFeature";
import { Edits } from "./edits/Edits";
import { LiveEdits } from "./edits/LiveEdits";
import { LiveRows } from "./LiveRows";
import { NotAttached } from "./NotAttached";
import { PageRows } from "./PageRows";
import { SaveProfile } from "./SaveProfile";
import { ServingDial } from "./ServingDial";
import type { Steer } from "./useSteer";

const REACHES = [
  { value: "page", label: "Only this page", title: "The values travel with each request of this page" },
  { value: "live", label: "Live for everyone", title: "The values are set in the service" },
] as const;

export function Features({ steer, find }: { steer: Steer; find: RefObject<HTMLInputElement | null> }) {
  const { state, alter, place, places } = steer;
  const [near, setNear] = useState<{ place: Place; index: number; name: string } | null>(null);
  const look = (of: Place, index: number, name: string) => {
    setNear({ place: of, index, name });
    find.current?.focus();
  };
  return (
    <section className="panel features-part" aria-label="Features" data-reach={state.for}>
      <div className="panel-head">
        <h2>Features</h2>
        {places.length > 1 && place !== null && (
          <select
            aria-label="SAE whose features are added and read"
            value={keyOf(place)}
            onChange={(event) => alter({ sae: event.target.value })}
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
      <OtherModel steer={steer} />
      {steer.lacking.map((sae) => (
        <NotAttached key={sae} sae={sae} steer={steer} />
      ))}
      {state.for === "live" && <ServingDial steer={steer} />}
      {place === null ? (
        <p className="empty">
          {(steer.able?.why ?? null) !== null ? (
            "This model has no features: no SAE can be attached to it."
          ) : (
            <>
              No SAE is attached, so there are no features. <Link to="/saes">Attach an SAE</Link>.
            </>
          )}
        </p>
      ) : (
        <>
          <AddFeature steer={steer} place={near?.place ?? place} near={near} onNear={setNear} input={find} />
          {state.for === "page" ? (
            <PageRows steer={steer} onNear={look} />
          ) : (
            <LiveRows steer={steer} place={place} onNear={look} />
          )}
          <Foot steer={steer} />
        </>
      )}
      {steer.able?.why === null && state.for === "page" && <Edits steer={steer} />}
      {steer.able?.why === null && state.for === "live" && <LiveEdits steer={steer} />}
      {state.for === "live" && state.e.length > 0 && (
        <p className="quiet">
          {state.e.length === 1
            ? "The edit of this page travels with its own requests. It waits under "
            : `The ${state.e.length} edits of this page travel with its own requests. They wait under `}
          <i>Only this page</i>.
        </p>
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

/** Says where the link was made with another model than the one that is here. */
function OtherModel({ steer: { state, model } }: { steer: Steer }) {
  if (state.model === "" || model === null || model.name === state.model) return null;
  return (
    <p className="notice notice-warn">
      This view was made with the model {state.model}, which is not loaded now. The same features may act in another
      way.
    </p>
  );
}

function Foot({ steer }: { steer: Steer }) {
  const { state, change, alter, setFeatures, act, live, place, lacking } = steer;
  const [isAsking, setAsking] = useState(false);
  const count = switchedOn(state.f ?? []).length;
  const own = place === null ? [] : liveFeatures(live.data, place);
  const makeLive = () =>
    act(
      async (on) => {
        for (const [sae, values] of Object.entries(valuesOf(state.f ?? []))) await on(placeOf(sae) ?? undefined).setAll(values);
      },
      { for: "live" },
    );
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
              disabled={!steers(state, live.data, place) || lacking.length > 0}
              onClick={() => setAsking(true)}
            >
              Make live…
            </button>
            {count > 0 && state.e.length === 0 && <SaveProfile steer={steer} />}
            <button type="button" className="small" onClick={() => setFeatures([])}>
              Remove all
            </button>
          </span>
        )}
        {!isEmpty && state.for === "live" && (
          <button
            type="button"
            className="small"
            onClick={() => alter({ for: "page", f: own })}
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
          makeLive().catch(notifyError);
        }}
      >
        <p>
          {count} {count === 1 ? "value is" : "values are"} set in the service. From then on every request of everybody is steered, until the values are removed.
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
