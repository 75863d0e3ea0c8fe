import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service } from "../test/service";
import Sensing from "./Sensing";

const NOTE = "a sentence of the service";
const EVENT = {
  id: 7,
  profile_id: "prof_1",
  request_id: "chatcmpl-1",
  choice: 0,
  phase: "decode",
  pos_start: 78,
  pos_end: 79,
  fired_members: [[90, 37.84]],
  fired_count: 1,
  score: 5.6,
  ambient_fired_count: null,
  context_text: "sail across the ocean. Eight",
  context_token_ids: [],
  context_parts: { before: "sail across", span: " the ocean", after: ". Eight" },
  summary: "sea: 1/4 members fired",
  truncated: false,
  created_at: "2026-11-22T12:41:32Z",
};
const ANSWERS = {
  "GET /api/clusters": { clusters: [{ id: "prof_1", name: "sea words", members: [[90, "sea", 47]], sensing_enabled: true }] },
  "GET /api/circuits": { circuits: [], total: 0 },
  "GET /api/sensing/status": {
    note: NOTE,
    armed: false,
    profile_id: null,
    retention: { max_events_per_cluster: 1000, max_age_days: 7 },
  },
  "GET /api/circuit-sensing/status": {
    note: NOTE,
    circuits: [],
    enabled_circuits: [],
    unsensable_edges: [],
    truncated_layers: [],
    paused_reason: null,
  },
  "GET /api/sensing/events": { events: [EVENT], total: 1 },
  "GET /api/circuit-sensing/events": { events: [], total: 0 },
  "GET /api/sensing/events/7": EVENT,
};

it("marks the span of the newest event, and says what an event is in the words of the service", async () => {
  service(ANSWERS);
  const { container } = showPage(<Sensing />);
  await waitFor(() => expect(screen.getAllByText(/the ocean/, { selector: "mark" }).length).toBe(2));
  expect(await screen.findByText(NOTE)).toBeTruthy();
  expect(await screen.findByRole("rowheader", { name: "sea #90" })).toBeTruthy();
  expect(screen.getByRole("link", { name: "sea words" }).getAttribute("href")).toBe("/clusters?id=prof_1");
  expect(await violations(container)).toEqual([]);
});

it("says that the event of an old link is not recorded any more", async () => {
  service({
    ...ANSWERS,
    "GET /api/circuit-sensing/events/3": refused({ code: "CIRCUIT_SENSING_EVENT_NOT_FOUND", message: "", status: 404 }),
  });
  showPage(<Sensing />, "/?kind=cluster&event=circuit-3");
  expect(await screen.findByText(/not recorded any more/)).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: /the ocean/ }));
  expect(await screen.findByRole("rowheader", { name: "sea #90" })).toBeTruthy();
});
