import { act, render, screen } from "@testing-library/react";
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { arrived, useLiveEvent, useProgress, type Payload } from "./live";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.runOnlyPendingTimers();
  vi.useRealTimers();
});

it("makes the answers of the nouns of an event stale, and no others", () => {
  const client = new QueryClient();
  for (const noun of ["models", "profiles"]) client.setQueryData([noun], {});
  arrived(client, "model:load:error", { modelId: 1 });
  expect(client.getQueryState(["models"])?.isInvalidated).toBe(true);
  expect(client.getQueryState(["profiles"])?.isInvalidated).toBe(false);
});

it("a lease that somebody else takes is asked for at once", () => {
  const client = new QueryClient();
  client.setQueryData(["health", "detailed"], {});
  arrived(client, "model:lease", { modelId: 1 });
  expect(client.getQueryState(["health", "detailed"])?.isInvalidated).toBe(true);
});

it("refreshes once for many events, and once more when they calm down", () => {
  const client = new QueryClient();
  const refreshed = vi.spyOn(client, "invalidateQueries");
  for (let count = 0; count < 50; count += 1) arrived(client, "sensing:event", {});
  expect(refreshed).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1_000);
  expect(refreshed).toHaveBeenCalledTimes(2);
});

it("makes firings of a kind stale, and not what is armed nor the other kind", () => {
  const client = new QueryClient();
  const keys = [["sensing", "cluster", "events"], ["sensing", "circuit", "events"], ["sensing", "clusters", "status"]];
  for (const key of keys) client.setQueryData(key, {});
  arrived(client, "sensing:event", {});
  expect(keys.map((key) => client.getQueryState(key)?.isInvalidated)).toEqual([true, false, false]);
});

it("asks for nothing while the page is hidden, and knows what is stale", async () => {
  vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  const client = new QueryClient();
  const ask = vi.fn(async () => "answer");
  const Shown = () => <p>{useQuery({ queryKey: ["profiles"], queryFn: ask }).data ?? "none"}</p>;
  render(
    <QueryClientProvider client={client}>
      <Shown />
    </QueryClientProvider>,
  );
  await act(() => vi.runAllTimersAsync());
  arrived(client, "steering:update", {});
  await act(() => vi.runAllTimersAsync());
  expect(ask).toHaveBeenCalledTimes(1);
  expect(client.getQueryState(["profiles"])?.isInvalidated).toBe(true);
});

it("shows the last progress of a download until the download has ended", () => {
  const client = new QueryClient();
  const Shown = () => <p>{String(useProgress("models", "download", 7)?.["progress"] ?? "none")}</p>;
  render(
    <QueryClientProvider client={client}>
      <Shown />
    </QueryClientProvider>,
  );
  act(() => {
    arrived(client, "model:download:progress", { modelId: 7, progress: 40 });
    vi.runAllTimers();
  });
  expect(screen.getByText("40")).toBeTruthy();
  act(() => {
    arrived(client, "model:download:complete", { modelId: 7 });
    vi.runAllTimers();
  });
  expect(screen.getByText("none")).toBeTruthy();
});

it("hands an event to the component that draws it, while the component is shown", () => {
  const drawn = vi.fn<(payload: Payload) => void>();
  const Chart = () => {
    useLiveEvent("monitoring:activation", drawn);
    return null;
  };
  const { unmount } = render(<Chart />);
  arrived(new QueryClient(), "monitoring:activation", { position: 3 });
  unmount();
  arrived(new QueryClient(), "monitoring:activation", { position: 4 });
  expect(drawn.mock.calls).toEqual([[{ position: 3 }]]);
});
