// The last lines of the service's log, followed while a page asks for it.
import { queryOptions } from "@tanstack/react-query";
import { request, type Data } from "./client";
import { continued, type Kept } from "../rules/log";

export type LogLine = Data<"/api/health/log">["lines"][number];
export type Level = LogLine["level"];

const EVERY = 2_000;

export function logLines(level: Level, isFollowed: boolean) {
  const queryKey = ["log", level] as const;
  return queryOptions({
    queryKey,
    queryFn: async ({ client, signal }): Promise<Kept<LogLine>> => {
      const before = client.getQueryData<Kept<LogLine>>(queryKey);
      const query = before === undefined ? { level } : { level, after: before.last_id };
      return continued(before, await request("get", "/api/health/log", { query, signal }));
    },
    enabled: isFollowed,
    refetchInterval: EVERY,
    // `continued` keeps the lines that are known as the same values, so there is nothing to compare
    structuralSharing: false,
    retry: false,
  });
}
