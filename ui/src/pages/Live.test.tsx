import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter } from "react-router";
import { expect, it, vi } from "vitest";
import { arrived } from "../api/live";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Live from "./Live";

vi.mock("../parts/Strip", () => ({ default: ({ label }: { label: string }) => <div role="img" aria-label={label} /> }));

const STATE = {
  enabled: true,
  sae_attached: true,
  sae_id: "sae_1",
  layer: 3,
  monitored_features: [],
  history_size: 100,
  history_count: 1,
  top_k: 10,
  read_point: "pre_steering",
};
const OFF = { ...STATE, enabled: false, history_count: 0 };
const at = (second: number) => new Date(Date.now() + 1000 * second).toISOString();
const record = () => ({
  timestamp: at(-60),
  request_id: "cmpl-1",
  sae_id: "sae_1",
  layer: 3,
  choice: 0,
  token_position: 47,
  token_id: 3,
  activations: [{ feature_index: 90, activation: 0, label: "sea" }],
  top_k: [{ feature_index: 17, activation: 40, label: "a stop" }],
  fired: 25,
  read_point: "pre_steering",
});
const firing = (created_at: string) => ({
  id: 4,
  profile_id: "prof_1",
  request_id: "cmpl-1",
  choice: 0,
  phase: "decode",
  pos_start: 12,
  pos_end: 12,
  fired_members: [[90, 10.3]],
  fired_count: 1,
  score: 8,
  ambient_fired_count: null,
  summary: "sea: 2/4 members fired",
  truncated: false,
  created_at,
  context_text: "the blue whale sang",
  context_token_ids: [1, 2, 3],
  context_parts: { before: "the blue", span: " whale", after: " sang" },
});

it.each([
  ["a GGUF model", { engine: "gguf", embedding_only: false }, /is a GGUF model.*has no layers to hook/],
  ["an embedding model", { engine: "checkpoint", embedding_only: true }, /is an embedding model.*has no layers to hook/],
])("with %s the page says at once that there is nothing to watch", async (_, kind, why) => {
  const model = { id: 1, name: "demo", quantization: "FP16", ...kind };
  service({
    "GET /api/monitoring": { ...OFF, sae_attached: false, sae_id: null, layer: null },
    "GET /api/models": { models: [model], total: 1, loaded_model_id: 1 },
  });
  showPage(<Live />, "/live");
  expect(await screen.findByText(why)).toBeTruthy();
  await waitFor(() => expect(screen.queryByRole("link", { name: /Attach an SAE/ })).toBeNull());
});

async function shown(
  { state = STATE, records = [record()], events = [firing(at(-60))], more = {} } = {},
  link = "/live",
) {
  const sent = service({
    ...more,
    "GET /api/monitoring": state,
    "GET /api/monitoring/history": { records, total: records.length },
    "POST /api/monitoring/configure": STATE,
    "GET /api/sensing/events": { events, total: events.length },
    "GET /api/circuit-sensing/events": { events: [], total: 0 },
    "GET /api/sensing/status": { armed: false },
    "GET /api/circuit-sensing/status": { armed: false },
  });
  const client = new QueryClient();
  const { container } = render(
    <QueryClientProvider client={client}>
      <MemoryRouter initialEntries={[link]}>
        <Live />
      </MemoryRouter>
    </QueryClientProvider>,
  );
  await screen.findByRole("button", { name: /Change|Switch monitoring on/ });
  const fire = (second: number, index: number, value: number) =>
    act(() =>
      arrived(client, "monitoring:activation", {
        timestamp: at(second),
        request_id: `cmpl-${second}`,
        position: 9,
        activations: [{ feature_index: index, activation: value }],
      }),
    );
  return { sent, container, fire };
}
const bars = () => screen.getByRole("list", { name: "Features at the last token of the newest answer" }).textContent;

it("shows the newest record, and live events as they come", async () => {
  const { container, fire } = await shown();
  const link = await screen.findByRole<HTMLAnchorElement>("link", { name: "a stop" });
  expect(link.href).toMatch(/\/features\/sae_1\/3\/17$/);
  fire(1, 332, 12.5);
  await waitFor(() => expect(bars()).toContain("3:33212.50"));
  expect(screen.getByText("A full bar is 40.00.")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("ranks the newest record by rarity where a corpus was read, says by what, and never shows an event in its place", async () => {
  const more = { "GET /api/saes/attachments": { entries: [{ sae_id: "sae_1", layer: 3, has_corpus: true }] } };
  const one = record();
  const records = [{ ...one, top_k: one.top_k.map((feature) => ({ ...feature, weight: 7.25 })) }];
  const { sent, fire } = await shown({ more, records });
  const ranks = () => sent.filter(({ path }) => path.endsWith("/history")).map(({ query }) => query.get("rank"));
  await waitFor(() => expect(ranks()).toContain("rarity"));
  fire(1, 332, 52.5);
  expect(await screen.findByText("A full bar is 52.50.")).toBeTruthy();
  expect(bars()).toContain("a stop");
  expect(bars()).toContain("ranked by 7.25");
  expect(bars()).not.toContain("332");
  fireEvent.click(screen.getByRole("radio", { name: "value" }));
  await waitFor(() => expect(bars()).toContain("3:33252.50"));
  expect(ranks().at(-1)).toBe("value");
});

it("stands still while it is paused, counts what comes, and goes on", async () => {
  const { fire } = await shown();
  await screen.findByRole("link", { name: "a stop" });
  fireEvent.click(screen.getByRole("button", { name: "Pause" }));
  fire(1, 332, 12);
  fire(2, 332, 13);
  expect(await screen.findByText("paused, 2 new")).toBeTruthy();
  expect(bars()).toContain("a stop");
  fireEvent.click(screen.getByRole("button", { name: "Go on" }));
  expect(bars()).toContain("13.00");
});

it("asks for the values of pinned features, and shows 0 as 0 and an unknown value as a dash", async () => {
  const { sent, fire } = await shown({}, "/live?pins=90");
  const row = await screen.findByRole("row", { name: /sea/ });
  expect(sent.find(({ path }) => path.endsWith("/history"))?.query.get("features")).toBe("90");
  await waitFor(() => expect(row.textContent).toContain("0.00"));
  fire(1, 332, 12);
  await waitFor(() => expect(row.textContent).toContain("–"));
});

it("switches monitoring on from the empty state", async () => {
  const { sent } = await shown({ state: OFF, records: [], events: [] });
  expect(screen.getByText(/Monitoring is off/)).toBeTruthy();
  expect(screen.getByText(/Nothing is sensed now/)).toBeTruthy();
  await act(async () => fireEvent.click(screen.getByRole("button", { name: "Switch monitoring on" })));
  expect(sent.find(({ method }) => method === "POST")?.body).toEqual({
    enabled: true,
    features: null,
    top_k: 10,
    history_size: 100,
  });
});

it("shows a firing with its span marked", async () => {
  await shown();
  const mark = await screen.findByText("whale", { selector: "mark" });
  expect(mark.parentElement?.textContent).toBe("the blue whale sang");
});

it("says how many records are kept by now", async () => {
  const state = { ...STATE, history_count: 0 };
  const { fire } = await shown({ state });
  expect(screen.getByText(/0 of at most 100 records are kept/)).toBeTruthy();
  state.history_count = 3;
  fire(1, 332, 12);
  expect(await screen.findByText(/3 of at most 100 records are kept/)).toBeTruthy();
});
