// The questions that several pages ask, and the keys of all questions. A page's own questions stand in `<noun>.ts`.
//
// A key begins with its noun. `live.ts` marks all questions of a noun as stale when an event says so.
import { QueryClient, queryOptions } from "@tanstack/react-query";
import { request, type Data } from "./client";
import { isLive } from "./live";
import { lostSince } from "./reach";
import { ApiError, isConnectionLost } from "../rules/errors";

export type Noun =
  | "health"
  | "models"
  | "saes"
  | "attachments"
  | "steering"
  | "profiles"
  | "clusters"
  | "circuits"
  | "claims"
  | "sensing"
  | "monitoring"
  | "readings"
  | "features"
  | "vectors"
  | "effects"
  | "jobs";

export type Health = Data<"/api/health/detailed">;
export type Cards = Data<"/api/health/gpus">;
export type Metrics = Data<"/api/health/metrics">;
export type Models = Data<"/api/models">;
export type Steering = Data<"/api/saes/steering">;

/** The time between two readings of what no event reports, in milliseconds. */
export const POLL = 10_000;
/** Live events make these answers stale, so they are read repeatedly only while no events arrive, or after a failure. */
export function unlessLive({ state }: { state: { status: string } }): number | false {
  return isLive() && state.status !== "error" ? false : POLL;
}
/** The same question on the page about it, which also shows the changes that no event reports. */
export function watched<T extends object>(options: T) {
  return { ...options, refetchInterval: POLL };
}
/** The time between two questions whether the service is back. */
const AGAIN = 2_000;
/** The time between two readings while a download or a load runs. */
export const BUSY_POLL = 1_500;

export function queryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 2_000,
        refetchOnWindowFocus: true,
        networkMode: "always",
        retry: (failures, error) => isTransient(error) && failures < 2,
        retryDelay: (failures) => 500 * 2 ** failures,
      },
      mutations: { retry: false, networkMode: "always" },
    },
  });
}

function isTransient(error: unknown): boolean {
  return error instanceof ApiError && (isConnectionLost(error) || error.status === 503);
}

export const health = queryOptions({
  queryKey: ["health", "detailed"] as const,
  queryFn: ({ signal }) => request("get", "/api/health/detailed", { signal }),
  refetchInterval: () => (lostSince() === null ? POLL : AGAIN),
});

export const cards = queryOptions({
  queryKey: ["health", "gpus"] as const,
  queryFn: ({ signal }) => request("get", "/api/health/gpus", { signal }),
  refetchInterval: POLL,
});

export const metrics = queryOptions({
  queryKey: ["health", "metrics"] as const,
  queryFn: ({ signal }) => request("get", "/api/health/metrics", { signal }),
  refetchInterval: POLL / 2,
});

export const models = queryOptions({
  queryKey: ["models"] as const,
  queryFn: ({ signal }) => request("get", "/api/models", { signal }),
  refetchInterval: (query) => {
    const isBusy = query.state.data?.models.some(({ status }) => /ing$/.test(status)) ?? false;
    return isBusy ? BUSY_POLL : unlessLive(query);
  },
});

export const attachments = queryOptions({
  queryKey: ["attachments"] as const,
  queryFn: ({ signal }) => request("get", "/api/saes/attachments", { signal }),
  refetchInterval: unlessLive,
});

export const steering = queryOptions({
  queryKey: ["steering"] as const,
  queryFn: ({ signal }) => request("get", "/api/saes/steering", { signal }),
  refetchInterval: unlessLive,
});
