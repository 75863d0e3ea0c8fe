// The value of a slider or a box while a person changes it, and its way to the service.
import { useCallback, useEffect, useRef, useState } from "react";

/** The time without a further change after which a value is sent, in milliseconds. */
export const SETTLED = 150;

/**
 * Args:
 *   value: what the service answered last.
 *   commit: sends a value, and settles when the service has answered.
 *
 * The shown value is the person's own while it is changed and sent. Then it is what the service answered, also where
 * the service refused the change.
 */
export function useCommitted(value: number, commit: (value: number) => Promise<unknown> | void) {
  const [draft, setDraft] = useState<number | null>(null);
  const [isSending, setSending] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const waiting = useRef<number | null>(null);
  const latest = useRef(commit);
  useEffect(() => {
    latest.current = commit;
  });

  const flush = useCallback(async () => {
    clearTimeout(timer.current);
    const sent = waiting.current;
    if (sent === null) return;
    waiting.current = null;
    setSending(true);
    try {
      await latest.current(sent);
    } catch {
      // whoever sends the value shows the refusal
    } finally {
      setSending(false);
      if (waiting.current === null) setDraft(null);
    }
  }, []);

  const change = useCallback(
    (next: number) => {
      setDraft(next);
      waiting.current = next;
      clearTimeout(timer.current);
      timer.current = setTimeout(() => void flush(), SETTLED);
    },
    [flush],
  );

  // a value that is still waiting is sent when the component goes
  useEffect(() => () => void flush(), [flush]);
  return { shown: draft ?? value, isDraft: draft !== null, isSending, change, flush };
}
