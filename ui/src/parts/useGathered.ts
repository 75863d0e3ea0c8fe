// Values that come one by one: the last ones, drawn together at most once in some milliseconds, and only where they are
// seen. The last value is always drawn.
import { useEffect, useMemo, useState } from "react";

export function useGathered<T>(most: number, milliseconds: number) {
  const [drawn, setDrawn] = useState<readonly T[]>([]);
  const gathered = useMemo(() => gatherer<T>(most, milliseconds, setDrawn), [most, milliseconds]);
  useEffect(() => {
    document.addEventListener("visibilitychange", gathered.draw);
    return () => {
      document.removeEventListener("visibilitychange", gathered.draw);
      gathered.stop();
    };
  }, [gathered]);
  return { drawn, add: gathered.add, clear: gathered.clear };
}

function gatherer<T>(most: number, milliseconds: number, show: (values: readonly T[]) => void) {
  let values: readonly T[] = [];
  let last = -Infinity;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const stop = () => {
    clearTimeout(timer);
    timer = undefined;
  };
  const draw = () => {
    stop();
    // nobody sees a hidden page
    if (document.hidden) return;
    last = performance.now();
    show(values);
  };
  const add = (value: T) => {
    values = [...values, value].slice(-most);
    timer ??= setTimeout(draw, Math.max(0, last + milliseconds - performance.now()));
  };
  const clear = () => {
    values = [];
    draw();
  };
  return { add, clear, draw, stop };
}
