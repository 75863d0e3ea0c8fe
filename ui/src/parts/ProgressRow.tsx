// Work that goes on: how far it is, how fast, and how to end it.
import type { ReactNode } from "react";
import { bytes, unitFor } from "../rules/bytes";
import { span } from "../rules/age";

export function ProgressRow({
  name,
  progress,
  done,
  total,
  rate,
  says,
  actions,
}: {
  name: string;
  /** Percent; null where it is not known. */
  progress: number | null;
  /** Bytes. */
  done?: number | null;
  total?: number | null;
  /** Bytes in a second; null where it was not measured. */
  rate?: number | null;
  says?: string;
  actions?: ReactNode;
}) {
  const unit = unitFor(total ?? done ?? 0);
  const isSized = done !== undefined && done !== null;
  const left = isSized && total && rate ? (total - done) / rate : null;
  return (
    <div className="progress-row">
      <div className="row spread">
        <span className="strong">{name}</span>
        <span className="numbers">{progress === null ? "–" : `${Math.floor(progress)} %`}</span>
      </div>
      <progress aria-label={`Progress of ${name}`} max={100} {...(progress === null ? {} : { value: progress })} />
      <div className="row spread">
        <span className="quiet numbers">
          {says}
          {isSized && `${bytes(done, unit)} of ${bytes(total, unit)}`}
          {rate !== undefined && rate !== null && `, ${bytes(rate, "MiB")}/s`}
          {left !== null && `, ${span(left)} left`}
        </span>
        {actions}
      </div>
    </div>
  );
}
