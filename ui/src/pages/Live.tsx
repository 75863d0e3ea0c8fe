// What fires now: the newest reading of monitoring, pinned features over the last answers, and firings of sensing.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { useCanRank } from "../api/corpora";
import { useConnection, useConnectionSince } from "../api/live";
import { monitoring, type Monitoring } from "../api/monitoring";
import { models, watched } from "../api/queries";
import { useLostSince } from "../api/reach";
import { Clock } from "../parts/Moment";
import { Answered, Panel } from "../parts/Panel";
import { FIRST, RankChoice, RANKS } from "../parts/RankChoice";
import { useFrozen } from "../parts/useFrozen";
import { useLink } from "../parts/useLink";
import { useNow } from "../parts/useNow";
import { abilitiesOf } from "../rules/abilities";
import { secondsSince, span } from "../rules/age";
import { choice } from "../rules/link";
import { indices } from "../rules/places";
import { largest, newer, newest } from "../rules/readings";
import { useShortcut } from "../shortcuts";
import { NoHooks } from "./NoHooks";
import { Configure, ConfigureForm } from "./live/Configure";
import { Firings } from "./live/Firings";
import { Newest } from "./live/Newest";
import { Pinned, PINS } from "./live/Pinned";
import { useReadings } from "./live/useReadings";
import "../css/live.css";

/** What a change of the configuration makes stale. */
const STALE = ["monitoring", "readings", "attachments"];
const LINK = { pins: indices(PINS), rank: choice(RANKS) };

export default function Live() {
  const [{ pins, rank: chosen }, change] = useLink(LINK);
  const [isPaused, setPaused] = useState(false);
  const state = useQuery(watched(monitoring));
  const { sae_id = null, layer = null } = state.data ?? {};
  const canRank = useCanRank(sae_id === null || layer === null ? null : { sae_id, layer });
  const rank = canRank ? chosen : "value";
  const { query, readings, labels } = useReadings(pins, rank, state.data);
  const shown = useFrozen(readings, isPaused);
  const fresh = isPaused ? newer(readings, shown.at(-1)) : 0;
  useShortcut("pause", () => setPaused((before) => !before));
  const pin = (index: number) =>
    change({ pins: pins.includes(index) ? pins.filter((one) => one !== index) : [...pins, index].slice(-PINS) });
  const client = useQueryClient();
  const changed = () => Promise.all(STALE.map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  const loaded = useQuery(models).data;
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id) ?? null;
  const isOn = state.data?.enabled === true;
  const place = { sae: sae_id ?? "", layer };
  return (
    <div className="page live-page">
      <header className="page-head live-head">
        <h1>Live</h1>
        <p className="row">
          <span role="status" className={isPaused ? "paused" : "quiet"}>
            {isPaused && `paused, ${fresh} new`}
          </span>
          <button type="button" aria-pressed={isPaused} onClick={() => setPaused(!isPaused)}>
            {isPaused ? "Go on" : "Pause"}
          </button>
        </p>
      </header>
      <Lost />
      <NoHooks model={model} all={loaded?.models ?? []}>
        So there are no features to watch. <Link to="/steer">Let it write</Link>.
      </NoHooks>
      <div className="columns">
        <div className="column">
          <Panel
            title="What fires now"
            about={`The features at the last token of the newest answer, before steering adds to them. ${FIRST[rank]}`}
            actions={
              canRank && (
                <RankChoice
                  value={rank}
                  onChange={(next) => {
                    change({ rank: next });
                    // readings that stand still keep the order that they had
                    setPaused(false);
                  }}
                />
              )
            }
          >
            <Answered query={state}>
              {(now) =>
                isOn || shown.length > 0 ? (
                  <>
                    {!isOn && <p className="stale">Monitoring is off. These are the last records.</p>}
                    <Answered query={query}>
                      {() => (
                        <Newest
                          reading={newest(shown, rank !== "value")}
                          scale={largest(shown)}
                          labels={labels}
                          place={place}
                          pins={pins}
                          hasExamples={canRank}
                          onPin={pin}
                        />
                      )}
                    </Answered>
                  </>
                ) : (
                  <Off state={now} isHooked={model === null || abilitiesOf(model).why === null} onDone={changed} />
                )
              }
            </Answered>
          </Panel>
          {state.data?.sae_attached === true && (isOn || shown.length > 0) && (
            <Configure key={String(isOn)} state={state.data} onDone={changed} />
          )}
        </div>
        <div className="column">
          <Pinned
            readings={shown}
            labels={labels}
            pins={pins}
            place={place}
            monitored={state.data?.monitored_features ?? []}
            onPin={pin}
          />
          <Firings isPaused={isPaused} />
        </div>
      </div>
    </div>
  );
}

/** Why nothing is monitored, and the next step. */
function Off({ state, isHooked, onDone }: { state: Monitoring; isHooked: boolean; onDone: () => Promise<unknown> }) {
  if (!isHooked) return <p className="empty">This model has no features to watch.</p>;
  if (!state.sae_attached) {
    return (
      <p className="empty">
        No SAE is attached, so there are no features to watch. <Link to="/saes">Attach an SAE.</Link>
      </p>
    );
  }
  return (
    <div className="empty flow">
      <p>Monitoring is off. Switch it on, and let the model write.</p>
      <ConfigureForm state={state} onDone={onDone} />
    </div>
  );
}

/** Since when no live events arrive. */
function Lost() {
  const connection = useConnection();
  const since = useConnectionSince();
  const lasts = useNow((now) => span(secondsSince(since, now)));
  const isAway = useLostSince() !== null;
  // that the service does not answer at all stands above every page
  if (connection !== "lost" || isAway) return null;
  return (
    <p className="stale" role="status">
      <span>
        <strong>Not live.</strong> No events since <Clock at={since} />, for {lasts}. The page
        asks for the records every few seconds, and connects again by itself.
      </span>
    </p>
  );
}
