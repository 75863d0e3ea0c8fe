// The time of the clock, for countdowns and ages. The components that use it are drawn again every second.
import { useSyncExternalStore } from "react";

let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const watchers = new Set<() => void>();

export function useNow(): number {
  return useSyncExternalStore(watch, () => now);
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  if (timer === undefined) {
    // nobody has watched the clock for a while
    now = Date.now();
    timer = setInterval(tick, 1000);
  }
  return () => {
    watchers.delete(watcher);
    if (watchers.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

function tick(): void {
  now = Date.now();
  for (const watcher of watchers) watcher();
}
