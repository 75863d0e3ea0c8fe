// One number with its name, and what it is of.
import type { ReactNode } from "react";

export function Figure({ label, value, of, children }: { label: string; value: string; of?: string; children?: ReactNode }) {
  return (
    <div className="figure">
      <span className="figure-label">{label}</span>
      <span className="figure-value">
        {value}
        {of !== undefined && <small> of {of}</small>}
      </span>
      {children}
    </div>
  );
}
