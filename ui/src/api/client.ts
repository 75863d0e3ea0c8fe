// Requests to the service, with the types of its OpenAPI description. A refusal is thrown as an ApiError.
import { connectionLost, isAborted, isRecord, refusal } from "../rules/errors";
import { keyHeader, refuseKey } from "./key";
import { answered, unanswered } from "./reach";
import type { Sent } from "../rules/snippet";
import type { paths } from "./types.gen";

export type Method = "get" | "post" | "put" | "patch" | "delete";
/** The paths that have a method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never;
}[keyof paths];

type Operation<P extends keyof paths, M extends Method> = paths[P][M];
// a route that may answer with a job (202) is asked here for what it answers at once (200)
type Answer<O> = O extends { responses: { 200: infer A } } ? A : O extends { responses: infer R } ? R[keyof R & (201 | 202)] : never;
type JsonOf<A> = A extends { content: { "application/json": infer B } } ? B : unknown;
type Unwrapped<B> = B extends { success: boolean; data?: infer D } ? NonNullable<D> : B;
/** What a request answers: the `data` of an envelope, or the whole body under `/v1`. */
export type Data<P extends keyof paths, M extends Method = "get"> = Unwrapped<JsonOf<Answer<Operation<P, M>>>>;
/** The JSON body that a request takes. */
export type Body<P extends keyof paths, M extends Method = "post"> =
  Operation<P, M> extends { requestBody?: infer R }
    ? NonNullable<R> extends { content: { "application/json": infer B } }
      ? B
      : unknown
    : never;
type Query<O> = O extends { parameters: { query?: infer Q } } ? NonNullable<Q> : never;
type PathParts<O> = O extends { parameters: { path: infer P } } ? P : undefined;

export interface Options<P extends keyof paths, M extends Method> {
  path?: PathParts<Operation<P, M>>;
  query?: Query<Operation<P, M>>;
  body?: Body<P, M>;
  /** A JSON body as it is written, such as the content of a file. */
  text?: string;
  /** A form with a file. */
  form?: FormData;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}
/** The header of a question that the page asks by itself, which is one that it may give up: its refusals are not counted. */
const BACKGROUND = { "X-Service-Background": "1" };
/** The codes of answers without an envelope that a proxy gives for a service that is away. */
const AWAY = /^HTTP_50[234]$/;

/** The address of the service. The page is at `<address>ui/`, behind any path prefix. */
export function base(): string {
  return new URL("../", document.baseURI).href;
}

/** Send a request and answer its data. */
export async function request<M extends Method, P extends PathOf<M>>(
  method: M,
  path: P,
  options: Options<P, M> = {},
): Promise<Data<P, M>> {
  const asked = described(method, path, options);
  const sent = options.signal === undefined ? asked : { ...asked, headers: { ...asked.headers, ...BACKGROUND } };
  const response = await send(sent, options.signal);
  const body = await json(response);
  return (isRecord(body) && "success" in body ? body["data"] : body) as Data<P, M>;
}

/** A request as its method, address, headers and body. `CopyCode` shows the same value as curl and Python. */
export function described<M extends Method, P extends PathOf<M>>(
  method: M,
  path: P,
  options: Options<P, M> = {},
): Sent {
  const parts = (options.path ?? {}) as Record<string, string | number>;
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(parts[name])));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== null) query.set(name, String(value));
  }
  const search = query.size > 0 ? `?${query}` : "";
  const type = options.body === undefined && options.text === undefined ? {} : { "Content-Type": "application/json" };
  const sent: Sent = {
    method: method.toUpperCase(),
    url: base() + filled.slice(1) + search,
    headers: { ...type, ...options.headers },
  };
  if (options.text !== undefined) return { ...sent, text: options.text };
  // the browser writes the type of a form itself, with its boundary
  if (options.form !== undefined) return { ...sent, form: options.form };
  return options.body === undefined ? sent : { ...sent, body: options.body };
}

/** Send a described request. The answer is one of success: a refusal is thrown, also one with status 200. */
export async function send(sent: Sent, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(sent.url, {
      method: sent.method,
      headers: { ...sent.headers, ...keyHeader() },
      body: sent.form ?? sent.text ?? (sent.body === undefined ? null : JSON.stringify(sent.body)),
      signal: signal ?? null,
      cache: "no-store",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    throw lost(error);
  }
  if (response.ok) {
    answered();
    return response;
  }
  const refused = refusal(await readable(response), response.status, response.headers);
  // a proxy answers in the place of a service that is away
  if (AWAY.test(refused.code)) throw lost(refused);
  answered();
  // other refusals with 401 concern the token of the hub
  if (refused.code.toUpperCase() === "UNAUTHORIZED") refuseKey();
  throw refused;
}

async function json(response: Response): Promise<unknown> {
  const body = await readable(response);
  if (isRecord(body) && body["success"] === false) throw refusal(body, response.status, response.headers);
  return body;
}

/** The error of a request or of a stream that broke: the connection is lost, unless the page itself ended it. */
export function lost(error: unknown): unknown {
  if (isAborted(error)) return error;
  unanswered();
  return connectionLost();
}

async function readable(response: Response): Promise<unknown> {
  const text = await response.text().catch((error: unknown) => {
    throw lost(error);
  });
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
