// A double of the service for tests of pages: answers by method and path, and the requests that were sent.
import { vi } from "vitest";

export interface Refused {
  code: string;
  message: string;
  details?: Record<string, unknown>;
  status?: number;
}
export interface Request {
  method: string;
  path: string;
  query: URLSearchParams;
  body: unknown;
}
type Handler = (request: Request) => unknown;

/** A refusal that a handler answers. */
export function refused(error: Refused): Refused & { isRefused: true } {
  return { ...error, isRefused: true };
}

/** Args: `answers` has `GET /api/…` -> the data, or a function that answers the data, perhaps later. Others answer null. */
export function service(answers: Record<string, unknown>): Request[] {
  const sent: Request[] = [];
  vi.stubGlobal("fetch", async (url: string, init: { method: string; body?: string | FormData | null }) => {
    const { pathname, searchParams } = new URL(url);
    const request = {
      method: init.method,
      path: pathname,
      query: searchParams,
      body: bodyOf(init.body),
    };
    sent.push(request);
    const answer = answers[`${init.method} ${pathname}`];
    const data: unknown = typeof answer === "function" ? await (answer as Handler)(request) : (answer ?? null);
    if (isRefused(data)) {
      const { code, message, details = {}, status = 200 } = data;
      return new Response(JSON.stringify({ success: false, data: null, error: { code, message, details } }), { status });
    }
    return new Response(JSON.stringify({ success: true, data, error: null }));
  });
  return sent;
}

function bodyOf(body: string | FormData | null | undefined): unknown {
  if (body instanceof FormData) return Object.fromEntries(body);
  return typeof body === "string" ? (JSON.parse(body) as unknown) : null;
}

function isRefused(data: unknown): data is Refused & { isRefused: true } {
  return typeof data === "object" && data !== null && "isRefused" in data;
}
