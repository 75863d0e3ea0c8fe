// Whether the service answers. Every request says so: an answer of any kind, or none.
import { useSyncExternalStore } from "react";

let lostAt: number | null = null;
const watchers = new Set<() => void>();

export function answered(): void {
  change(null);
}

export function unanswered(): void {
  change(lostAt ?? Date.now());
}

/** Since when the service does not answer, in milliseconds since 1970; null while it answers. */
export function lostSince(): number | null {
  return lostAt;
}

export function useLostSince(): number | null {
  return useSyncExternalStore(watch, lostSince);
}

function change(next: number | null): void {
  if (next === lostAt) return;
  lostAt = next;
  for (const watcher of watchers) watcher();
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}
