// Firings of clusters and circuits, as they are recorded, with the text around them.
import { memo } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { circuitSensing, clusterSensing, firings } from "../../api/sensing";
import { Ago } from "../../parts/Moment";
import { Answered, Panel } from "../../parts/Panel";
import { SpanText } from "../../parts/SpanText";
import { useFrozen } from "../../parts/useFrozen";
import { useNow } from "../../parts/useNow";
import { keyOf, newestFirst, type Firing } from "../../rules/firing";

const SHOWN = 5;
/** The time in which a firing counts as new, in milliseconds. */
const NEW = 10_000;

export const Firings = memo(function Firings({ isPaused }: { isPaused: boolean }) {
  const clusters = useQuery(firings("cluster", "", SHOWN));
  const circuits = useQuery(firings("circuit", "", SHOWN));
  const armed = [useQuery(clusterSensing).data?.armed, useQuery(circuitSensing).data?.armed];
  const all = newestFirst(clusters.data?.events ?? [], circuits.data?.events ?? []).slice(0, SHOWN);
  const shown = useFrozen(all, isPaused);
  const waiting = all.filter((one) => !shown.some((other) => keyOf(other) === keyOf(one))).length;
  return (
    <Panel
      title="Sensing"
      about="Where members of a cluster fired together, or an edge of a circuit fired. Sensing only observes."
      actions={<Link to="/sensing">All firings</Link>}
    >
      {waiting > 0 && <p className="paused">paused, {waiting} new</p>}
      <Answered
        query={clusters}
        isEmpty={() => shown.length === 0}
        empty={
          <p>
            {armed.includes(true) ? (
              "Sensing is on, and nothing has fired yet."
            ) : (
              <>
                Nothing is sensed now. Activate a <Link to="/clusters">cluster</Link> or a{" "}
                <Link to="/circuits">circuit</Link>, and enable its sensing on the page{" "}
                <Link to="/sensing">Sensing</Link>.
              </>
            )}
          </p>
        }
      >
        {() => (
          <Answered query={circuits}>
            {() => (
              <ol className="firings" aria-label="Newest firings">
                {shown.map((firing) => (
                  <Row key={keyOf(firing)} firing={firing} />
                ))}
              </ol>
            )}
          </Answered>
        )}
      </Answered>
    </Panel>
  );
});

function Row({ firing }: { firing: Firing }) {
  const isNew = useNow((now) => now - Date.parse(firing.at) < NEW);
  return (
    <li data-new={isNew || undefined}>
      <p className="row quiet">
        {isNew && <b className="new-tag">new</b>}
        <span>
          <Link to={`/sensing?event=${keyOf(firing)}`}>{firing.kind}</Link>, <Ago at={firing.at} />
        </span>
      </p>
      <SpanText parts={firing.parts ?? (firing.text === null ? null : { before: firing.text, span: "", after: "" })} />
      <p className="quiet">
        {firing.summary}
        {firing.isTruncated && ". Later firings of this answer were not recorded"}
      </p>
    </li>
  );
}
