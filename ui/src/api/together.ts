// Several answers of /v1 that are written at the same time, read as one comparison. The first failure ends all of them.
import { asComparison, type SideRequest } from "./plain";
import { stream, type StreamEvent } from "./stream";

export async function* together(sides: readonly SideRequest[], signal: AbortSignal): AsyncGenerator<StreamEvent, void> {
  const own = new AbortController();
  const arrived: StreamEvent[] = [];
  let failure: { error: unknown } | null = null;
  let wake = () => {};
  let open = sides.length;
  let whole = 0;
  let isBegun = false;
  const read = async ({ sent, intensity }: SideRequest, side: number) => {
    try {
      const { events } = await stream(sent, AbortSignal.any([signal, own.signal]));
      for await (const event of asComparison(events, side, intensity)) {
        if (event.name === "done") whole += 1;
        else if (event.name !== "started") arrived.push(event);
        else if (!isBegun) {
          isBegun = true;
          const all = sides.map((one, at) => ({ side: at, intensity: one.intensity, steering: {}, edits: one.edits }));
          arrived.push({ name: "started", data: { ...(event.data as object), sides: all } });
        }
        wake();
      }
    } catch (error) {
      failure ??= { error };
      own.abort();
    } finally {
      open -= 1;
      wake();
    }
  };
  const all = sides.map(read);
  try {
    for (;;) {
      yield* arrived.splice(0);
      if (failure !== null) throw (failure as { error: unknown }).error;
      // more may have arrived while these were taken
      if (arrived.length > 0) continue;
      if (open === 0) break;
      await new Promise<void>((resolve) => {
        wake = resolve;
        if (arrived.length > 0 || open === 0) resolve();
      });
    }
    if (whole === sides.length) yield { name: "done", data: {} };
  } finally {
    own.abort();
    await Promise.all(all);
  }
}
