// The list of firings, newest first.
import type { UseQueryResult } from "@tanstack/react-query";
import { Ago } from "../../parts/Moment";
import { QueryPanel } from "../../parts/Panel";
import { count } from "../../rules/bytes";
import { keyOf, type Firing } from "../../rules/firing";

export function EventList<T>({
  query,
  events,
  total,
  opened,
  onOpen,
}: {
  query: UseQueryResult<T>;
  events: readonly Firing[];
  total: number;
  opened: string | null;
  onOpen: (key: string) => void;
}) {
  return (
    <QueryPanel
      className="documents-list"
      title="Events"
      query={query}
      isEmpty={() => events.length === 0}
      empty={<p>No event is recorded. Events appear here as they happen.</p>}
      {...(total > events.length ? { about: `The newest ${count(events.length)} of ${count(total)}.` } : {})}
    >
      {() => (
        <ul className="shelf events" aria-label="Events, newest first">
          {events.map((event) => {
            const key = keyOf(event);
            return (
              <li key={key}>
                <button type="button" aria-current={key === opened || undefined} onClick={() => onOpen(key)}>
                  <span className="event-text">
                    {event.parts === null ? (
                      (event.text ?? event.summary)
                    ) : (
                      <>
                        {tail(event.parts.before)}
                        <mark>{event.parts.span}</mark>
                        {head(event.parts.after)}
                      </>
                    )}
                  </span>
                  <span className="shelf-facts">
                    {event.evidence === null
                      ? `cluster · ${event.fired.length} fired`
                      : `circuit · ${event.evidence.edge}`}{" "}
                    · {event.phase} · <Ago at={event.at} />
                  </span>
                </button>
              </li>
            );
          })}
        </ul>
      )}
    </QueryPanel>
  );
}

/** The characters around a span that the list shows. */
const AROUND = 36;

function head(after: string): string {
  return after.length > AROUND ? `${after.slice(0, AROUND)}…` : after;
}

function tail(before: string): string {
  return before.length > AROUND ? `…${before.slice(-AROUND)}` : before;
}
