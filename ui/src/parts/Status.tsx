// A status as a sign and a word. The sign differs in form, not only in colour.
const KINDS: Record<string, "good" | "warn" | "bad"> = {
  healthy: "good",
  closed: "good",
  degraded: "warn",
  half_open: "warn",
  unhealthy: "bad",
  open: "bad",
};
const SIGNS = { good: "●", warn: "▲", bad: "■", none: "○" };

export function Status({ status }: { status: string }) {
  const kind = KINDS[status] ?? "none";
  return (
    <span className={`status ${kind}`}>
      <span aria-hidden="true">{SIGNS[kind]}</span> {status.replace("_", " ")}
    </span>
  );
}
