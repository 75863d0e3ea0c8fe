// The edges of a circuit that fired a moment ago, from the live events of circuit sensing.
import { useEffect, useRef, useState } from "react";
import { useLiveEvent } from "../../api/live";

/** The time for which an edge stays lit, in milliseconds. */
const LIT = 1_800;

export function useFired(circuitId: string): ReadonlySet<string> {
  const [lit, setLit] = useState<ReadonlySet<string>>(new Set());
  const timers = useRef(new Map<string, ReturnType<typeof setTimeout>>());
  useLiveEvent("circuit:sensing:event", (event) => {
    const key = event["edge_key"];
    if (event["circuit_id"] !== circuitId || typeof key !== "string") return;
    clearTimeout(timers.current.get(key));
    setLit((before) => new Set(before).add(key));
    timers.current.set(
      key,
      setTimeout(() => setLit((before) => new Set([...before].filter((one) => one !== key))), LIT),
    );
  });
  useEffect(() => {
    const running = timers.current;
    return () => {
      for (const timer of running.values()) clearTimeout(timer);
    };
  }, []);
  return lit;
}
