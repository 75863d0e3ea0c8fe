import { act, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { arrived } from "../api/live";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service, type Request } from "../test/service";
import Circuits from "./Circuits";

const RECORD = {
  id: "circ_1",
  name: "sea stories",
  description: null,
  rung: 1,
  rung_language: "a phrase of the service",
  rung_next_step: "a test of the service",
  validated: false,
  edge_count: 1,
  layers: [2, 3],
  serveable: true,
  is_active: false,
  serving_mode: null,
  intensity: 1,
  steering: null,
  composed_layers: [],
  per_sae_warnings: [
    { layer: 2, sae_id: "sae_a", verdict: "bind", reason: null },
    { layer: 3, sae_id: "sae_b", verdict: "warn", reason: "a reason of the service" },
  ],
  created_at: "2026-01-05T10:00:00Z",
  updated_at: "2026-01-05T10:00:00Z",
};
const EDGE = "955@2->90@3";
const DETAIL = {
  ...RECORD,
  dial_range: [0.2, 1.5],
  sensing_enabled: true,
  members: [
    { layer: 2, feature_idx: 955, label: null, value: 11 },
    { layer: 3, feature_idx: 90, label: "sea", value: -42 },
  ],
  edges: [
    {
      edge_key: EDGE,
      up: { layer: 2, feature_idx: 955 },
      down: { layer: 3, feature_idx: 90 },
      edge_type: null,
      rung: 1,
      rung_language: "a phrase of the service",
      effect_size: 0.4,
      weight_prior: null,
    },
  ],
  hazards: [],
};
const ANSWERS = {
  "GET /api/circuits": { circuits: [RECORD], active_circuit_id: null, total: 1 },
  "GET /api/circuits/circ_1": DETAIL,
  "GET /api/circuits/claims": [
    { layer: 3, circuit_id: "circ_2", circuit_name: "another", composed: false, steering_keys: [5] },
  ],
  "GET /api/circuit-sensing/status": { circuits: [], unsensable_edges: [], paused_reason: null },
  "GET /api/circuit-sensing/events": { events: [], total: 0 },
  "GET /api/health/detailed": { active_profile: null },
  "GET /api/saes/sae_a/labels": { labels: [{ feature_idx: 955, label: "waves" }] },
  "GET /api/saes/attachments": { count: 1, entries: [{ sae_id: "sae_b", layer: 3 }] },
  "GET /api/saes/steering": { enabled: true, values: { "90": -42, "7": 1 } },
};

it("asks again before an unvalidated circuit serves, and before it serves beside another one", async () => {
  const sent = service({
    ...ANSWERS,
    "POST /api/circuits/circ_1/activate": ({ query }: Request) => {
      if (query.get("acknowledge_unvalidated") !== "true") {
        return refused({ code: "UNVALIDATED_CIRCUIT", message: "the evidence is thin" });
      }
      if (query.get("allow_layer_overlap") !== "true") {
        const all_incumbents = [{ id: "circ_2", name: "another", layers: [3] }];
        return refused({
          code: "CIRCUIT_LAYER_CONTENTION",
          message: "'another' serves on layer 3",
          details: { all_incumbents, overridable: true },
        });
      }
      return { ...RECORD, warnings: ["both steer layer 3"] };
    },
  });
  showPage(<Circuits />);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Activate" }));
  const beside = await screen.findByRole("dialog", { name: "Activate sea stories beside what steers now?" });
  expect(beside.textContent).toContain("2 values steer now, set by hand. They stay, and sea stories adds its own");
  expect(sent.some(({ path }) => path.endsWith("/activate"))).toBe(false);
  await user.click(within(beside).getByRole("button", { name: "Activate" }));
  const first = await screen.findByRole("dialog", { name: "Activate sea stories all the same?" });
  expect(first.textContent).toContain("the evidence is thin");
  expect(first.textContent).toContain("a phrase of the service");
  await user.click(within(first).getByRole("button", { name: "Activate all the same" }));
  const second = await screen.findByRole("dialog", { name: "Activate sea stories beside another circuit?" });
  expect(second.textContent).toContain("Layer 3: another");
  await user.click(within(second).getByRole("button", { name: "Activate both" }));
  expect(await screen.findByText("both steer layer 3")).toBeTruthy();
  const asked = sent.filter(({ method, path }) => method === "POST" && path.endsWith("/activate"));
  expect(asked.map(({ query }) => query.toString())).toEqual([
    "acknowledge_unvalidated=false&allow_layer_overlap=false",
    "acknowledge_unvalidated=true&allow_layer_overlap=false",
    "acknowledge_unvalidated=true&allow_layer_overlap=true",
  ]);
});

it("offers no way around features that two circuits steer", async () => {
  service({
    ...ANSWERS,
    "POST /api/circuits/circ_1/activate": () =>
      refused({
        code: "CIRCUIT_LAYER_CONTENTION",
        message: "both steer 90",
        details: {
          all_incumbents: [],
          overridable: false,
          colliding_keys: [{ layer: 3, feature_idx: 90, incumbent: { id: "circ_2", name: "another" } }],
        },
      }),
  });
  showPage(<Circuits />);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Activate" }));
  const beside = await screen.findByRole("dialog", { name: "Activate sea stories beside what steers now?" });
  await user.click(within(beside).getByRole("button", { name: "Activate" }));
  const dialog = await screen.findByRole("dialog", { name: "sea stories cannot serve now" });
  expect(dialog.textContent).toContain("3:90 of another");
  expect(within(dialog).queryByRole("button", { name: "Activate both" })).toBeNull();
});

it("shows the edge that fires, the claims, the verdicts and the values that are not the circuit's", async () => {
  service(ANSWERS);
  const { client, container } = showPage(<Circuits />);
  const edges = within(await screen.findByRole("table", { name: "Table of edges" }));
  const row = (await edges.findByRole("rowheader", { name: /waves 2:955/ })).closest("tr");
  expect(row?.textContent).toContain("a phrase of the service");
  expect(row?.textContent).not.toContain("now");
  act(() => arrived(client, "circuit:sensing:event", { circuit_id: "circ_1", edge_key: EDGE }));
  expect(row?.textContent).toContain("now");
  expect(await screen.findByText("a reason of the service")).toBeTruthy();
  expect(await screen.findByRole("button", { name: "Release the layers of another" })).toBeTruthy();
  const layer = within(screen.getByRole("region", { name: "Layer 3" }));
  expect((await layer.findByText(/differs from/)).textContent).toContain("1 feature differs");
  expect(await violations(container)).toEqual([]);
});
