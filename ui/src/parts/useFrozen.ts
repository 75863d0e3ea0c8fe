// A value that stands still while it is frozen.
import { useState } from "react";

export function useFrozen<T>(value: T, isFrozen: boolean): T {
  const [kept, setKept] = useState<{ value: T } | null>(null);
  if (isFrozen && kept === null) setKept({ value });
  if (!isFrozen && kept !== null) setKept(null);
  return isFrozen && kept !== null ? kept.value : value;
}
