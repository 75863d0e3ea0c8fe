// A streamed comparison: its events reach the cached answer in batches, so that a page is drawn at most 60 times a second.
import { useCallback, useEffect, useRef } from "react";
import { skipToken, useQuery, useQueryClient } from "@tanstack/react-query";
import {
  applied,
  ended,
  sent,
  type AnswerTokens,
  type Asked,
  type CompareEvent,
  type Comparison,
  type Phase,
  type Report,
  type StartedSide,
} from "../rules/comparison";
import { ApiError, connectionLost, isAborted } from "../rules/errors";
import type { Sent } from "../rules/snippet";
import { described, type Body } from "./client";
import { asComparison, type SideRequest } from "./plain";
import { stream, type StreamEvent } from "./stream";
import { together } from "./together";
import type { components } from "./types.gen";

export type CompareBody = Body<"/api/compare">;
type Events = components["schemas"]["CompareEvents"];

/** The least time between two drawings, in milliseconds. */
const FRAME = 16;

/** The request of a comparison, as it is sent and as it is shown to be copied. */
export function comparing(body: CompareBody) {
  return described("post", "/api/compare", { body: { ...body, stream: true } });
}

/** The last comparison of a name. The component is drawn again with each piece of text. */
export function useComparison(name: string): Comparison | undefined {
  return useQuery<Comparison>({ queryKey: keyOf(name), queryFn: skipToken, gcTime: Infinity }).data;
}

/**
 * Functions that begin and stop a comparison of a name, and its phase. Leaving the page stops the comparison; what was
 * written by then is kept. The component is drawn again with each phase, not with each piece of text.
 */
export function useRun(name: string) {
  const client = useQueryClient();
  const running = useRef<AbortController>(null);
  // the request at work, so that one that is asked for twice, by leaving a field and by a click, is sent once
  const atWork = useRef<string>(null);
  const { data: phase } = useQuery<Comparison, Error, Phase>({
    ...{ queryKey: keyOf(name), queryFn: skipToken, gcTime: Infinity },
    select: (comparison) => comparison.phase,
  });

  const stop = useCallback(() => {
    atWork.current = null;
    running.current?.abort();
  }, []);
  const run = useCallback(
    async (request: Sent | readonly SideRequest[], asked: Asked) => {
      const written = JSON.stringify("url" in request ? [request.url, request.body] : request);
      if (atWork.current === written) return;
      running.current?.abort();
      atWork.current = written;
      const own = new AbortController();
      running.current = own;
      const change = (how: (before: Comparison) => Comparison) => {
        // a comparison that was replaced no longer writes
        if (running.current === own) client.setQueryData<Comparison>(keyOf(name), (before) => before && how(before));
      };
      client.setQueryData<Comparison>(keyOf(name), (before) => sent(before, asked, performance.now()));
      try {
        await follow(request, own.signal, (events) => change((before) => applied(before, events, performance.now())));
      } catch (error) {
        change((before) => ended(before, isAborted(error) ? null : error, performance.now()));
      } finally {
        if (running.current === own) atWork.current = null;
      }
    },
    [client, name],
  );
  useEffect(() => stop, [stop]);
  return { phase, run, stop, isRunning: phase === "waiting" || phase === "running" };
}

function keyOf(name: string) {
  return ["comparison", name];
}

/** Read a stream to its end, and hand its events on in batches. */
async function follow(
  asked: Sent | readonly SideRequest[],
  signal: AbortSignal,
  draw: (events: CompareEvent[]) => void,
): Promise<void> {
  let waiting: CompareEvent[] = [];
  let timer: ReturnType<typeof setTimeout> | undefined;
  const flush = () => {
    clearTimeout(timer);
    timer = undefined;
    if (waiting.length > 0) draw(waiting);
    waiting = [];
  };
  try {
    let isWhole = false;
    for await (const event of "url" in asked ? asComparison((await stream(asked, signal)).events) : together(asked, signal)) {
      const read = known(event);
      if (read === null) continue;
      waiting.push(read);
      isWhole ||= read.name === "done";
      timer ??= setTimeout(flush, FRAME);
    }
    if (!isWhole) throw connectionLost("The connection ended before the text was complete.");
  } finally {
    flush();
  }
}

/** An event that the fold knows; null for another one. A failure is thrown. */
function known({ name, data }: StreamEvent): CompareEvent | null {
  switch (name) {
    case "started":
      return { name, data: data as Omit<Events["started"], "sides"> & { sides: StartedSide[] } };
    case "prompt":
      return { name, data: data as Events["prompt"] };
    case "text":
      return { name, data: data as Events["text"] };
    case "report":
      return { name, data: data as { side: number; report: Report } };
    case "answer":
      return { name, data: data as { side: number; answer: AnswerTokens } };
    case "done":
      return { name };
    case "error": {
      const { message, code, details, retry_after } = data as Events["error"];
      throw new ApiError(message, code, details, null, retry_after ?? null);
    }
    default:
      return null;
  }
}
