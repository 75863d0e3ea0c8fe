// Notices of what happened, at the corner of the page, read out by a live region.
import { useSyncExternalStore } from "react";
import { isConnectionLost } from "../rules/errors";
import { ErrorNotice } from "./ErrorNotice";

export interface Notice {
  id: number;
  /** A sentence for a success; an error for a refusal. */
  text?: string;
  error?: unknown;
  /** What the error kept from happening. */
  says?: string | undefined;
}

/** The time after which a success goes by itself, in milliseconds. Refusals stay until they are closed. */
const SHOWN = 5_000;
const MOST = 4;
let notices: readonly Notice[] = [];
let last = 0;
const watchers = new Set<() => void>();

/** Say that something was done. */
export function notify(text: string): void {
  const id = add({ text });
  setTimeout(() => close(id), SHOWN);
}

/** Say that something was refused. */
export function notifyError(error: unknown): void {
  add({ error });
}

/** Say that something was refused, and what did not happen for it. */
export function notifyUndone(error: unknown, says: string): void {
  add({ error, says });
}

/** Close the notices of a connection that is back. */
export function forgetLost(): void {
  notices = notices.filter(({ error }) => !isConnectionLost(error));
  tell();
}

export function Notices() {
  const shown = useSyncExternalStore(watch, () => notices);
  return (
    <div className="notices" role="region" aria-label="Notices">
      <div aria-live="polite">
        {shown.map((notice) => (
          <div key={notice.id} className="notice-card">
            {notice.error === undefined ? (
              <p className="notice notice-good">
                <strong>Done.</strong> {notice.text}
              </p>
            ) : (
              <ErrorNotice error={notice.error} says={notice.says} />
            )}
            <button type="button" className="small close" aria-label="Close the notice" onClick={() => close(notice.id)}>
              ✕
            </button>
          </div>
        ))}
      </div>
    </div>
  );
}

/** Close all notices. */
export function closeAll(): void {
  notices = [];
  tell();
}

function add(notice: Omit<Notice, "id">): number {
  last += 1;
  notices = [...notices, { id: last, ...notice }].slice(-MOST);
  tell();
  return last;
}

function close(id: number): void {
  notices = notices.filter((notice) => notice.id !== id);
  tell();
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

function tell(): void {
  for (const watcher of watchers) watcher();
}
