// A value that is edited faster than its link should change. It reaches the link when it has settled.
import { useCallback, useEffect, useRef, useState } from "react";

/** The time without a further change after which the link changes, in milliseconds. */
const SETTLED = 400;

/**
 * The edited value, a function that edits it, and functions that write or forget what still waits.
 *
 * Where the link changes by another way, such as the browser's way back, the link wins.
 */
export function useSettled<T>(linked: T, write: (value: T) => void) {
  const [draft, setDraft] = useState<{ value: T; of: string } | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const waiting = useRef<{ value: T } | null>(null);
  const latest = useRef(write);
  useEffect(() => {
    latest.current = write;
  });
  const of = JSON.stringify(linked);
  const shown = draft !== null && draft.of === of ? draft.value : linked;

  const forget = useCallback(() => {
    clearTimeout(timer.current);
    waiting.current = null;
  }, []);
  const flush = useCallback(() => {
    const last = waiting.current;
    forget();
    if (last !== null) latest.current(last.value);
  }, [forget]);
  const edit = useCallback(
    (value: T) => {
      setDraft({ value, of });
      waiting.current = { value };
      clearTimeout(timer.current);
      timer.current = setTimeout(flush, SETTLED);
    },
    [of, flush],
  );
  // a page that was left must not change the link of the next one
  useEffect(() => forget, [forget]);
  return { shown, edit, flush, forget };
}
