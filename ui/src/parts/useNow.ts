// What the clock says, for countdowns and ages. A component that uses it is drawn again when its words change.
import { useSyncExternalStore } from "react";

let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const watchers = new Set<() => void>();

/** What is said of this second. It is a text, a number or a truth value, so that it can be compared with what was drawn. */
export function useNow<T extends string | number | boolean>(says: (now: number) => T): T {
  return useSyncExternalStore(watch, () => says(now));
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
  // nobody sees a hidden page
  if (document.hidden) return;
  now = Date.now();
  for (const watcher of watchers) watcher();
}
