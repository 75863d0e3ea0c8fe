// The last lines of the service's log, newest last. Following can be paused.
import { useEffect, useRef, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { logLines, type Level } from "../../api/log";
import { LogList } from "../../parts/LogList";
import { QueryPanel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { useLink } from "../../parts/useLink";
import { choice } from "../../rules/link";
import "../../css/log.css";

const LEVELS = [
  { value: "DEBUG", label: "All" },
  { value: "INFO", label: "Info" },
  { value: "WARNING", label: "Warnings" },
  { value: "ERROR", label: "Errors" },
] as const satisfies readonly { value: Level; label: string }[];
const LINK = { level: choice(["INFO", "DEBUG", "WARNING", "ERROR"]) };
/** How far from the end, in pixels, a person may have scrolled and still see the newest line come. */
const NEAR = 40;

export function Log() {
  const [{ level }, change] = useLink(LINK);
  const [isFollowed, setFollowed] = useState(true);
  const query = useQuery(logLines(level, isFollowed));
  const list = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const last = query.data?.lines.at(-1)?.id;
  useEffect(() => {
    const box = list.current;
    if (box !== null && isAtEnd.current) box.scrollTop = box.scrollHeight;
  }, [last, level]);
  return (
    <QueryPanel
      className="whole"
      title="Log"
      about="The last lines of the service, the newest one at the end, without secrets and prompts."
      actions={
        <>
          <Segmented label="Least level of the lines" options={LEVELS} value={level} onChange={(next) => change({ level: next })} />
          <button type="button" className="small" aria-pressed={!isFollowed} onClick={() => setFollowed(!isFollowed)}>
            {isFollowed ? "Pause" : "Follow"}
          </button>
        </>
      }
      query={query}
      isEmpty={({ lines }) => lines.length === 0}
      empty={<p>No line of this level yet.</p>}
    >
      {({ lines }) => (
        <div
          ref={list}
          className="log"
          role="log"
          aria-live="off"
          aria-label="Lines of the log"
          tabIndex={0}
          onScroll={({ currentTarget: box }) => {
            isAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
          }}
        >
          <LogList lines={lines} />
          {!isFollowed && <p className="quiet">Paused. Newer lines are not shown.</p>}
        </div>
      )}
    </QueryPanel>
  );
}
