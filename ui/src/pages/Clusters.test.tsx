import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Clusters from "./Clusters";

const CLUSTER = {
  ...{ id: "prof_1", name: "sea", description: null, sae_id: "sae_a", layer: 3, model_id: null, display_token: null },
  ...{ budget_b: null, formula_id: null, hub_ref: null, intensity: 1, intensity_range: null, dial_range: [0, 2] },
  ...{ members: [[90, null, 10], [7, "shore", 4]], member_count: 2, warnings: [], is_active: false },
  ...{ created_at: "2026-01-05T10:00:00Z", updated_at: "2026-01-05T10:00:00Z" },
};

it("a cluster is sensed from its page, and a member without a label has that of the SAE", async () => {
  const cluster = { ...CLUSTER, sensing_enabled: false };
  const sent = service({
    "GET /api/clusters": () => ({ clusters: [{ ...cluster }], total: 1, active_cluster_id: null }),
    "GET /api/circuits/claims": [],
    "GET /api/health/detailed": { active_profile: null },
    "GET /api/saes/attachments": { count: 1, entries: [{ sae_id: "sae_a", layer: 3 }] },
    "GET /api/saes/steering": { enabled: true, values: {} },
    "GET /api/saes/sae_a/labels": { labels: [{ feature_idx: 90, label: "waves" }] },
    "POST /api/sensing/prof_1/enable": () => {
      cluster.sensing_enabled = true;
    },
  });
  showPage(<Clusters />);
  expect((await screen.findAllByRole("rowheader", { name: "waves 3:90" })).length).toBeGreaterThan(0);
  const name = "Sense this cluster";
  expect((await screen.findByRole<HTMLInputElement>("switch", { name })).checked).toBe(false);
  await userEvent.click(screen.getByRole("switch", { name }));
  await waitFor(() => expect(screen.getByRole<HTMLInputElement>("switch", { name }).checked).toBe(true));
  expect(sent.filter(({ method }) => method !== "GET").map(({ path }) => path)).toEqual(["/api/sensing/prof_1/enable"]);
});
