import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { closeAll, Notices } from "../parts/Notices";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Saes from "./Saes";

const FACTS = {
  repository_id: null, revision: null, file_path: null, local_path: "/data/a", format: "saelens", architecture: "topk",
  d_in: 64, d_sae: 512, dtype: "float32", hook_name: null, site: "resid_post", normalisation: null, trained_on: "demo",
  trained_layer: 3, width: "512", average_l0: 24, file_size_bytes: 1000, status: "cached", download_progress: null,
  download: null, error_message: null, error_code: null, same_request: null, is_loadable: true, reason: null, needs: [], warnings: [],
  created_at: "2026-01-01T00:00:00Z", updated_at: "2026-01-01T00:00:00Z",
};
const A = { ...FACTS, id: "sae_a", name: "first" };
const B = { ...FACTS, id: "sae_b", name: "second", trained_layer: 2 };
const MODEL = { id: 1, name: "demo", status: "loaded", engine: "checkpoint", layers: 4 };
const ENTRY = {
  sae_id: "sae_a", layer: 3, memory_usage_mb: 2, steering_enabled: true, monitoring_enabled: false, steering_apply_count: 7,
  warnings: ["it was trained on another model"], check: { text: "a story", tokens: 95, features_fired: 400, l0: 240, fvu: 0.21 }, over_corpus: null, k: null,
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

it("what is attached is asked where it was chosen, and the focus stays there", async () => {
  const many = Array.from({ length: 8 }, (_, n) => ({ ...B, id: `sae_${n}`, name: `layer 2, width ${n}k` }));
  served({ "GET /api/saes": { saes: many, total: 8, attachment: {} } });
  showPage(<Saes />);
  const button = await screen.findByRole("button", { name: "Attach layer 2, width 7k" });
  await userEvent.click(button);
  const panel = screen.getByRole("region", { name: "To attach" });
  expect(button.closest("li")?.contains(panel)).toBe(true);
  expect(document.activeElement).toBe(button);
  await userEvent.selectOptions(within(panel).getByRole("combobox", { name: /Precision in memory/ }), "bfloat16");
  await userEvent.click(screen.getByRole("button", { name: "Attach layer 2, width 0k" }));
  const moved = screen.getByRole("region", { name: "To attach" });
  expect(within(moved).getByRole("combobox", { name: /Precision in memory/ })).toHaveProperty("value", "bfloat16");
  await userEvent.click(within(moved).getByRole("button", { name: "Clear" }));
  expect((document.activeElement as HTMLElement).ariaLabel).toBe("Attach layer 2, width 0k");
});

it("says in which precision one SAE is held, and several of a set", async () => {
  served();
  showPage(<Saes />, "/saes?attach=sae_a@3");
  expect(await screen.findByText(/in the precision of its file/)).toBeTruthy();
  await userEvent.click(await screen.findByRole("button", { name: "Attach second" }));
  expect(await screen.findByText(/A set is held as float16/)).toBeTruthy();
});

it("sorts SAEs by the numbers in their names", async () => {
  const named = (width: string) => ({ ...A, id: width, name: `layer_3/width_${width}` });
  served({ "GET /api/saes": { saes: ["1m", "16k", "262k"].map(named), total: 3, attachment: {} } });
  showPage(<Saes />);
  await screen.findByRole("button", { name: "Attach layer_3/width_1m" });
  const names = screen.getAllByRole("heading", { level: 3 }).map(({ textContent }) => textContent);
  expect(names).toEqual(["layer_3/width_16k", "layer_3/width_262k", "layer_3/width_1m"]);
});

it("explains the words of the self-check to the keyboard too", async () => {
  served({ "GET /api/saes/attachments": { ...NOTHING, is_attached: true, count: 1, entries: [ENTRY] } });
  showPage(<Saes />);
  for (const [word, means] of [["FVU", /variance unexplained/], ["L0", /features fire/], ["claimed", /files of the SAE say/]] as const) {
    const term = (await screen.findAllByText(word, { selector: ".term-word" }))[0] ?? document.body;
    term.focus();
    expect(document.activeElement).toBe(term);
    expect(document.getElementById(term.getAttribute("aria-describedby") ?? "")?.textContent).toMatch(means);
  }
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
  const look = await screen.findByRole("button", { name: "Look at it" });
  expect(asked.map(({ path }) => path)).not.toContain("/api/saes/preview");
  await userEvent.click(look);
  await userEvent.click(await screen.findByRole("button", { name: "2 at layer 1, width 16k" }));
  expect(screen.getByText("2 of 3 SAEs")).toBeTruthy();
  expect(screen.queryByText("layer_2/width_65k/average_l0_30")).toBeNull();
  expect(await violations(container)).toEqual([]);
  await userEvent.click(screen.getByRole("button", { name: "Download layer_1/width_16k/average_l0_90" }));
  const body = { repository_id: "acme/scope", file_path: "layer_1/width_16k/average_l0_90" };
  await waitFor(() => expect(asked.find(({ path }) => path === "/api/saes/download")?.body).toEqual(body));
});

it("values of a link that cannot be are refused in words, and the page is drawn without them", async () => {
  for (const layer of ["20000000", "1e300"]) {
    const asked = served();
    const shown = showPage(
      <>
        <Saes />
        <Notices />
      </>,
      `/saes?attach=sae_a@${layer}`,
    );
    expect(await screen.findByText(/cannot be read and was left out: attach must be at most 16 SAEs/)).toBeTruthy();
    expect(await screen.findByRole("button", { name: "Attach first" })).toBeTruthy();
    expect(screen.queryByRole("region", { name: "To attach" })).toBeNull();
    expect(asked.map(({ path }) => path)).not.toContain("/api/saes/sae_a/compatibility");
    shown.unmount();
    closeAll();
  }
});

it("a download whose repository is still looked at has a row with its progress, and is cancelled there", async () => {
  const looking = { downloaded_bytes: 0, total_bytes: 0, percent: 0, speed_bps: null, phase: "looking" };
  const late = { ...FACTS, id: "sae_late", name: "scope/layer_1", repository_id: "acme/scope", status: "downloading", is_loadable: false, download_progress: 0, download: looking };
  const asked = served({
    "GET /api/saes": { saes: [late], total: 1, attachment: {} },
    "POST /api/saes/sae_late/cancel": { sae_id: "sae_late", status: "cancelled", message: "cancelled by user" },
  });
  const { container } = showPage(<Saes />);
  const row = within(await screen.findByRole("listitem", { name: "scope/layer_1" }));
  expect(row.getByRole("progressbar", { name: "Progress of Download" }).hasAttribute("value")).toBe(false);
  expect(row.getByText("Asking the hub what the repository has")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  await userEvent.click(row.getByRole("button", { name: "Cancel the download of scope/layer_1" }));
  await waitFor(() => expect(asked.some(({ path }) => path === "/api/saes/sae_late/cancel")).toBe(true));
});

it("a failed download is resumed where bytes are kept, begun anew where none are, and offers nothing where it was refused", async () => {
  const failed = { ...FACTS, repository_id: "acme/scope", status: "error", is_loadable: false };
  const kept = { ...failed, id: "sae_1", name: "kept", error_message: "the connection to the hub broke", error_code: "DOWNLOAD_FAILED", same_request: "resume" };
  const gated = { ...failed, id: "sae_2", name: "gated", error_message: "it is gated", error_code: "GATED_MODEL_NO_TOKEN", same_request: "retry" };
  const pickle = { ...failed, id: "sae_3", name: "pickle", error_message: "it is no SAE", error_code: "SAE_LOAD_FAILED", same_request: null };
  served({ "GET /api/saes": { saes: [kept, gated, pickle], total: 3, attachment: {} } });
  showPage(<Saes />);
  const row = (name: string) => within(screen.getByRole("listitem", { name }));
  expect(await screen.findByRole("button", { name: "Resume the download of kept" })).toBeTruthy();
  expect(row("gated").getByRole("button", { name: "Retry the download of gated" })).toBeTruthy();
  expect(row("gated").getByLabelText(/token/i)).toBeTruthy();
  expect(row("pickle").queryByRole("button", { name: /Resume|Retry/ })).toBeNull();
});
