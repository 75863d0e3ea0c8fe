// A refusal of the service, in one form for both of its doors.

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    message: string,
    readonly code: string,
    readonly details: Record<string, unknown> = {},
    readonly status: number | null = null,
    /** The seconds after which the service asks to be tried again. */
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

/** The refusal in an answer of `/api` (`{success, data, error}`) or of `/v1` (`{error}`). */
export function refusal(body: unknown, status: number | null, headers?: Headers): ApiError {
  const error = field(body, "error");
  const retry = Number(headers?.get("retry-after"));
  const inDetails = field(error, "details");
  const details = isRecord(inDetails) ? { ...inDetails } : {};
  const param = field(error, "param");
  if (typeof param === "string") details["param"] ??= param;
  return new ApiError(
    text(field(error, "message")) ?? `the service answered with status ${status}`,
    text(field(error, "code")) ?? `HTTP_${status}`,
    details,
    status,
    retry > 0 ? retry : null,
  );
}

/** The code of an error of the page itself. */
export const PAGE_ERROR = "PAGE_ERROR";
/** The code of a request that the service did not answer, or not to its end. */
const LOST = "CONNECTION_LOST";

export function connectionLost(message = "The service does not answer."): ApiError {
  return new ApiError(message, LOST);
}

/** Whether an error says that the service did not answer, which is no refusal. */
export function isConnectionLost(error: unknown): boolean {
  return error instanceof ApiError && error.code === LOST;
}

/** Any error as one that can be shown. */
export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(error instanceof Error ? error.message : String(error), PAGE_ERROR);
}

/** Whether an error only says that its request was stopped by the page. */
export function isAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Whether a refusal asks for a token of the hub, or for another one. */
export function needsToken(error: unknown): boolean {
  return error instanceof ApiError && asksForToken(error.code);
}

/** Whether a code says that the hub wants a token, or another one. */
export function asksForToken(code: string | null): boolean {
  return code === "GATED_MODEL_NO_TOKEN" || code === "INVALID_HUB_TOKEN";
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function field(value: unknown, name: string): unknown {
  return isRecord(value) ? value[name] : undefined;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}
