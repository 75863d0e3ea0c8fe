// The service that does not answer, and what a restart of it has taken. Both are said on every page.
import { useEffect, useMemo, useRef, useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { useConnection } from "./api/live";
import { attachments, health, models, steering } from "./api/queries";
import { useLostSince } from "./api/reach";
import { Clock } from "./parts/Moment";
import { forgetLost } from "./parts/Notices";
import { useNow } from "./parts/useNow";
import { secondsSince, span } from "./rules/age";
import { gone, known, missing, type Known } from "./rules/gone";

/** Two runs of the service begin at least as far apart, in milliseconds; answers of one run agree better. */
const APART = 5_000;

interface Run {
  /** When the service began to run, in milliseconds since 1970. */
  startedAt: number;
  known: Known;
}

export function Lost() {
  const since = useLostSince();
  const client = useQueryClient();
  const wasLost = useRef(false);
  useEffect(() => {
    if (since !== null) void client.refetchQueries({ queryKey: health.queryKey });
    else if (wasLost.current) {
      forgetLost();
      void client.invalidateQueries();
    }
    wasLost.current = since !== null;
  }, [since, client]);
  const { before, now, accept } = useRestart(since !== null);
  if (since !== null) return <Away since={since} />;
  return before === null || now === null ? null : <Restarted before={before.known} now={now} onClose={accept} />;
}

function Away({ since }: { since: number }) {
  const lasts = useNow((now) => span(secondsSince(since, now)));
  return (
    <aside className="banner" aria-label="Connection">
      <p role="status">
        <strong>Connection lost.</strong> The service has not answered since <Clock at={since} />. The page tries again
        every few seconds. Until then, nothing that you change here reaches the service.
      </p>
      <p className="numbers">{lasts}</p>
    </aside>
  );
}

function Restarted({ before, now, onClose }: { before: Known; now: Run; onClose: () => void }) {
  const words = gone(before, now.known, Date.now());
  if (words.length === 0) return null;
  const hasModel = now.known.model !== null;
  const hasSaes = before.saes.every((sae) => now.known.saes.includes(sae));
  return (
    <aside className="banner" aria-label="Restart">
      <p role="status">
        <strong>The service was restarted</strong> at <Clock at={now.startedAt} />. Gone: {words.join(", ")}.{" "}
        {!hasModel ? <Link to="/models">Load a model</Link> : !hasSaes && <Link to="/saes">Attach SAEs</Link>}
      </p>
      <button type="button" className="small" aria-label="Close this notice" onClick={onClose}>
        ✕
      </button>
    </aside>
  );
}

/** What was known of the run of the service before this one, until nothing of it is missing or a person closes it. */
function useRestart(isAway: boolean) {
  const now = useRun(isAway);
  const [before, setBefore] = useState<Run | null>(null);
  const isSame = before === null || now === null || Math.abs(now.startedAt - before.startedAt) < APART;
  const isWhole = isSame || gone(before.known, now.known, Date.now()).length === 0;
  useEffect(() => {
    if (now === null) return;
    // what has come back once, and goes later, did not go with the restart
    if (isWhole) setBefore(now);
    else setBefore((old) => old && { ...old, known: missing(old.known, now.known) });
  }, [now, isWhole]);
  return { before: isSame ? null : before, now, accept: () => setBefore(now) };
}

/** What the service told of itself in one run; null until every answer is newer than the last loss of the connection. */
function useRun(isAway: boolean): Run | null {
  const lostAt = useRef(0);
  const isLost = useConnection() === "lost" || isAway;
  useEffect(() => {
    if (isLost) lostAt.current = Date.now();
  }, [isLost]);
  const state = useQuery(health);
  const all = useQuery(models);
  const attached = useQuery(attachments);
  const hasSaes = (attached.data?.count ?? 0) > 0;
  const steered = useQuery({ ...steering, enabled: hasSaes });
  const answers = hasSaes ? [state, all, attached, steered] : [state, all, attached];
  const oldest = Math.min(...answers.map(({ dataUpdatedAt }) => dataUpdatedAt));
  const newest = Math.max(...answers.map(({ dataUpdatedAt }) => dataUpdatedAt));
  return useMemo(() => {
    if (isLost || newest === 0 || oldest <= lostAt.current) return null;
    if (state.data === undefined || all.data === undefined || attached.data === undefined) return null;
    return {
      startedAt: state.dataUpdatedAt - 1000 * state.data.uptime_seconds,
      known: known({
        models: all.data,
        attachments: attached.data,
        steering: hasSaes ? steered.data : undefined,
        lease: state.data.lease,
      }),
    };
  }, [isLost, oldest, newest, hasSaes, state.data, state.dataUpdatedAt, all.data, attached.data, steered.data]);
}
