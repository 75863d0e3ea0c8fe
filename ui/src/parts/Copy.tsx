// A button that copies a text.
import { useEffect, useState } from "react";

export function Copy({ text, label, says = "Copy" }: { text: string; label: string; says?: string }) {
  const [said, setSaid] = useState<string | null>(null);
  useEffect(() => {
    if (said === null) return undefined;
    const timer = setTimeout(() => setSaid(null), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      // a page over plain HTTP of another machine has no clipboard
      setSaid("Select and copy it");
    }
  };
  return (
    <button type="button" className="small" aria-label={label} onClick={() => void copy()}>
      <span aria-live="polite">{said ?? says}</span>
    </button>
  );
}
