// The lease of the loaded model: who holds it, why, and for how long still.
import { span } from "../rules/age";
import { useNow } from "./useNow";

export interface Lease {
  model_name: string;
  holder: string;
  reason: string;
  expires_at: string;
}

export function LeaseBanner({ lease }: { lease: Lease }) {
  const end = Date.parse(lease.expires_at);
  const left = useNow((now) => (end > now ? `ends in ${span((end - now) / 1000)}` : "has ended"));
  return (
    <aside className="banner" aria-label="Lease">
      <p>
        <strong>{lease.holder}</strong> holds a lease on <strong>{lease.model_name}</strong>
        {lease.reason !== "" && <>: {lease.reason}</>}. Until its end, only the holder loads or unloads models.
      </p>
      <p className="numbers" aria-live="off">
        {left}
      </p>
    </aside>
  );
}
