// A word with its meaning, which is shown while the pointer is on the word or the word has the focus.
import { useId, type ReactNode } from "react";

export function Term({ means, children }: { means: string; children: ReactNode }) {
  const id = useId();
  return (
    <span className="term">
      <span className="term-word" tabIndex={0} aria-describedby={id}>
        {children}
      </span>
      <span className="term-means" role="tooltip" id={id}>
        {means}
      </span>
    </span>
  );
}
