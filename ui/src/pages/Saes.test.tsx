import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Saes from "./Saes";

const FACTS = {
  repository_id: null, revision: null, file_path: null, local_path: "/data/a", format: "saelens", architecture: "topk",
  d_in: 64, d_sae: 512, dtype: "float32", hook_name: null, site: "resid_post", normalisation: null, trained_on: "demo",
  trained_layer: 3, width: "512", average_l0: 24, file_size_bytes: 1000, status: "cached", download_progress: null,
  download: null, error_message: null, is_loadable: true, reason: null, needs: [], warnings: [],
  created_at: "2026-01-01T00:00:00Z", updated_at: "2026-01-01T00:00:00Z",
};
const A = { ...FACTS, id: "sae_a", name: "first" };
const B = { ...FACTS, id: "sae_b", name: "second", trained_layer: 2 };
const MODEL = { id: 1, name: "demo", status: "loaded", engine: "checkpoint", layers: 4 };
const ENTRY = {
  sae_id: "sae_a", layer: 3, memory_usage_mb: 2, steering_enabled: true, monitoring_enabled: false, steering_apply_count: 7,
  warnings: ["it was trained on another model"], check: { l0: 240, fvu: 0.21, dead_fraction: 0.4 },
  layer_module_path: "model.layers.3", site: "resid_post", dtype: "float32", is_calibrated: true,
};
const NOTHING = { is_attached: false, count: 0, entries: [], to_restore: [], total_memory_usage_mb: null, vram_envelope_mb: 4096, vram_warning: false };
const FITS = { compatible: true, errors: [], warnings: [] };

function served(answers: Record<string, unknown> = {}) {
  return service({
    "GET /api/saes": { saes: [A, B], total: 2, attachment: {} },
    "GET /api/saes/attachments": NOTHING,
    "GET /api/saes/steering": { enabled: true, values: { "9": 3 } },
    "GET /api/models": { models: [MODEL], total: 1, loaded_model_id: 1 },
    "GET /api/saes/sae_a/compatibility": FITS,
    "GET /api/saes/sae_b/compatibility": FITS,
    "POST /api/saes/attach-set": { status: "attached", entries: [] },
    ...answers,
  });
}

it("the self-check stands beside the claim, and the warnings of the attach stay", async () => {
  served({ "GET /api/saes/attachments": { ...NOTHING, is_attached: true, count: 1, entries: [ENTRY] } });
  const { container } = showPage(<Saes />);
  const l0 = within(await screen.findByRole("listitem", { name: "first at layer 3" })).getByRole("row", { name: /L0/ });
  expect(l0.textContent).toContain("240.0");
  await waitFor(() => expect(l0.textContent).toContain("24"));
  expect(await screen.findByText(/L0 is 10 times the claim/)).toBeTruthy();
  expect(screen.getByText("it was trained on another model")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Detach first" }));
  expect((await screen.findByRole("dialog", { name: "Detach first?" })).textContent).toContain("1 steering value of this SAE");
  expect(await violations(container)).toEqual([]);
});

it("several SAEs are attached together, each at its layer", async () => {
  const asked = served();
  const { container } = showPage(<Saes />);
  await userEvent.click(await screen.findByRole("button", { name: "Attach first" }));
  await userEvent.click(await screen.findByRole("button", { name: "Attach second" }));
  const panel = within(screen.getByRole("region", { name: "To attach" }));
  const second = within(panel.getByRole("listitem", { name: "second" }));
  expect(await second.findByText(/fits at layer 2/)).toBeTruthy();
  await userEvent.selectOptions(second.getByRole("combobox", { name: "Layer" }), "1");
  expect(await violations(container)).toEqual([]);
  await userEvent.click(panel.getByRole("button", { name: "Attach 2 SAEs" }));
  const body = { saes: [{ sae_id: "sae_a", layer: 3 }, { sae_id: "sae_b", layer: 1 }] };
  await waitFor(() => expect(asked.find(({ path }) => path === "/api/saes/attach-set")?.body).toEqual(body));
});

it("an SAE that does not fit is not attached, and the page says why", async () => {
  served({ "GET /api/saes/sae_a/compatibility": { compatible: false, errors: ["the widths differ"], warnings: [] } });
  showPage(<Saes />, "/saes?attach=sae_a@0");
  expect(await screen.findByText("the widths differ")).toBeTruthy();
  expect(within(screen.getByRole("region", { name: "To attach" })).getByRole("button", { name: "Attach" })).toHaveProperty("disabled", true);
});

it("a repository is shown by layer and width, and a press on a cell chooses its SAEs", async () => {
  const unit = (layer: number, width: string, l0: number) => ({
    path: `layer_${layer}/width_${width}/average_l0_${l0}`, size_bytes: 1000, file_count: 1, layer, width, l0, site: null,
    format: "gemma-scope", is_loadable: true, reason: null,
  });
  const files = [unit(1, "16k", 20), unit(1, "16k", 90), unit(2, "65k", 30)];
  const offered = { repository_id: "acme/scope", revision: "abcdef01", model_id: null, files, total_files: 3, total_units: 3, matched: 3, total_bytes: 3000, other_files: [], total_other_files: 0, limit: null, offset: 0 };
  const asked = served({ "POST /api/saes/preview": offered, "POST /api/saes/download": { sae_id: "x", status: "downloading", message: "the download has begun" } });
  const { container } = showPage(<Saes />, "/saes?repo=acme/scope");
  await userEvent.click(await screen.findByRole("button", { name: "2 at layer 1, width 16k" }));
  expect(screen.getByText("2 of 3 SAEs")).toBeTruthy();
  expect(screen.queryByText("layer_2/width_65k/average_l0_30")).toBeNull();
  expect(await violations(container)).toEqual([]);
  await userEvent.click(screen.getByRole("button", { name: "Download layer_1/width_16k/average_l0_90" }));
  const body = { repository_id: "acme/scope", file_path: "layer_1/width_16k/average_l0_90" };
  await waitFor(() => expect(asked.find(({ path }) => path === "/api/saes/download")?.body).toEqual(body));
});
