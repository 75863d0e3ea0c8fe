// A part of a page with its heading, and its four states: loading, empty, failed, stale.
import { useId, type ReactNode } from "react";
import type { UseQueryResult } from "@tanstack/react-query";
import { ErrorNotice } from "./ErrorNotice";
import { Ago } from "./Moment";

type Answer<T> = Pick<UseQueryResult<T>, "data" | "error" | "isFetching" | "dataUpdatedAt" | "refetch">;

interface Frame {
  title: string;
  /** Buttons beside the heading. */
  actions?: ReactNode;
  /** A sentence under the heading. */
  about?: ReactNode;
  className?: string;
}

/** A panel without a question of its own. */
export function Panel({ title, actions, about, className, children }: Frame & { children: ReactNode }) {
  const id = useId();
  return (
    <section className={`panel ${className ?? ""}`} aria-labelledby={id}>
      <div className="panel-head">
        <h2 id={id}>{title}</h2>
        {actions !== undefined && <div className="row">{actions}</div>}
      </div>
      {about !== undefined && <p className="about">{about}</p>}
      {children}
    </section>
  );
}

/** A panel that shows the answer to a question, or says why it does not. */
export function QueryPanel<T>({
  query,
  isEmpty,
  empty,
  children,
  ...frame
}: Frame & {
  query: Answer<T>;
  isEmpty?: (data: T) => boolean;
  /** What an empty answer means, with a link to the next step. */
  empty?: ReactNode;
  children: (data: T) => ReactNode;
}) {
  return (
    <Panel {...frame}>
      <Answered query={query} isEmpty={isEmpty} empty={empty}>
        {children}
      </Answered>
    </Panel>
  );
}

/** The four states without a frame. */
export function Answered<T>({
  query,
  isEmpty,
  empty,
  children,
}: {
  query: Answer<T>;
  isEmpty?: ((data: T) => boolean) | undefined;
  empty?: ReactNode;
  children: (data: T) => ReactNode;
}) {
  const retry = () => void query.refetch();
  if (query.data === undefined) {
    if (query.error !== null) return <ErrorNotice error={query.error} onRetry={retry} />;
    return (
      <p className="loading" role="status">
        Loading
      </p>
    );
  }
  return (
    <>
      {query.error !== null && <Stale since={query.dataUpdatedAt} error={query.error} onRetry={retry} />}
      {isEmpty?.(query.data) === true ? <div className="empty">{empty}</div> : children(query.data)}
    </>
  );
}

function Stale({ since, error, onRetry }: { since: number; error: Error; onRetry: () => void }) {
  return (
    <div className="stale" role="status">
      <p>
        <strong>Not current.</strong> This is the state of <Ago at={since} />. {error.message}
      </p>
      <button type="button" onClick={onRetry}>
        Read again
      </button>
    </div>
  );
}
