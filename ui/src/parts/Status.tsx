// A status as a sign and a word. The sign differs in form, not only in colour.
const KINDS: Record<string, "good" | "warn" | "bad" | "busy"> = {
  healthy: "good",
  closed: "good",
  loaded: "good",
  attached: "good",
  serving: "good",
  starting: "busy",
  restoring: "busy",
  draining: "busy",
  stalled: "bad",
  lost: "bad",
  downloading: "busy",
  loading: "busy",
  unloading: "busy",
  error: "bad",
  degraded: "warn",
  half_open: "warn",
  unhealthy: "bad",
  open: "bad",
};
const SIGNS = { good: "●", warn: "▲", bad: "■", busy: "◐", none: "○" };

export function Status({ status }: { status: string }) {
  const kind = KINDS[status] ?? "none";
  return (
    <span className={`status ${kind}`}>
      <span aria-hidden="true">{SIGNS[kind]}</span> {status.replace("_", " ")}
    </span>
  );
}
