// Lines of a log: time, level, what happened, its fields, and the places of an exception.
import { memo } from "react";
import { fieldText } from "../rules/log";

interface Line {
  id: number;
  at: string;
  level: string;
  logger: string;
  event: string;
  fields: Record<string, unknown>;
  exception: { type: string; places: string[] } | null;
  missed?: number;
}
const CLOCK = new Intl.DateTimeFormat("en-US", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const KINDS: Record<string, string> = { ERROR: "bad", WARNING: "warn", INFO: "", DEBUG: "quiet" };

export function LogList({ lines }: { lines: readonly Line[] }) {
  return (
    <ol className="log-lines">
      {lines.map((line) => (
        <LogLine key={line.id} line={line} />
      ))}
    </ol>
  );
}

/** One line. It never changes, so that a new line does not draw the hundreds before it again. */
const LogLine = memo(function LogLine({ line }: { line: Line }) {
  return (
    <li className={KINDS[line.level] ?? ""} title={line.logger}>
      {line.missed !== undefined && <p className="quiet">{line.missed} lines were not read in time.</p>}
      <time dateTime={line.at}>{timeOf(line.at)}</time> <span className="log-level">{line.level.toLowerCase()}</span>{" "}
      <strong>{line.event}</strong>
      {fieldsOf(line.fields).map(([name, value]) => (
        <span key={name} className={name === "request_id" ? "quiet" : ""}>
          {" "}
          <span className="quiet">{name}=</span>
          {fieldText(value)}
        </span>
      ))}
      {line.exception !== null && (
        <details>
          <summary>{line.exception.type}</summary>
          <ol>
            {line.exception.places.map((place, number) => (
              <li key={number}>{place}</li>
            ))}
          </ol>
        </details>
      )}
    </li>
  );
});

/** The fields in their order, but the id of the request at the end: it is long, and seldom read. */
function fieldsOf(fields: Record<string, unknown>): [string, unknown][] {
  return Object.entries(fields).sort(([a], [b]) => Number(a === "request_id") - Number(b === "request_id"));
}

function timeOf(at: string): string {
  const moment = new Date(at);
  return `${CLOCK.format(moment)}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
}
