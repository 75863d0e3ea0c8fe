// A value that changes fast, drawn at most once in some milliseconds. The last value is always drawn.
import { useEffect, useRef, useState } from "react";

export function useAtMost<T>(value: T, milliseconds: number): T {
  const [shown, setShown] = useState(value);
  const last = useRef(-Infinity);
  useEffect(() => {
    const show = () => {
      last.current = performance.now();
      setShown(() => value);
    };
    const left = last.current + milliseconds - performance.now();
    const timer = setTimeout(show, Math.max(0, left));
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return shown;
}
