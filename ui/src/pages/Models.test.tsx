import { act, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { arrived } from "../api/live";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service, type Request } from "../test/service";
import Models from "./Models";

const FACTS = {
  source: "huggingface", repo_id: "acme/tiny", revision: "abc", local_path: "/cache/tiny", quantization: "FP16",
  gguf_label: null, engine: "checkpoint", params: "3M", architecture: "LlamaForCausalLM", disk_size_mb: 12,
  estimated_memory_mb: 0, device: null, dtype: null, lease: null, loaded_at: null, supports_embeddings: true,
  trust_remote_code: false, error_message: null, num_parameters: 3_000_000, download_progress: null, download: null,
  memory_footprint: null, gpu_indices: [], memory_by_device_mb: {}, placement: null, layers: null, context_length: null,
  kv_cache_tokens: null, kv_cache_mb: null, created_at: "2026-01-01T00:00:00Z", updated_at: "2026-01-01T00:00:00Z",
  locked: false,
};
const LOADED = { ...FACTS, id: 1, name: "one", status: "loaded" };
const READY = { ...FACTS, id: 2, name: "two", status: "ready" };
const TINY = {
  name: "tiny", repo_id: "acme/tiny", revision: "abcdef0123", params: null, num_parameters: null, architecture: null,
  architectures: null, model_type: null, requires_trust_remote_code: false, is_gated: false,
  estimated_sizes: { FP16: { disk_mb: 5000, memory_mb: 6000 }, Q4: { disk_mb: 5000, memory_mb: 2000 } },
  downloads: null, likes: null, tags: [], pipeline_tag: null, license: null, language: null,
  gguf_quants: [{ label: "Q4_K_M", files: [{}], total_size_bytes: 2 ** 30, is_split: false, quant_parsed: true }],
  gguf_companions: null, gguf_architecture: null, gguf_context_length: null, gguf_total_params: null,
};
const HOST = { read_at: "2026-01-01T00:00:00Z", reason: "no card", cards: [], host: { total_mb: 8000, available_mb: 4000 }, model_memory: null };
const HEALTH = { lease: null, inference: { in_flight: 0, queue_waiting: 0 } };
const NONE = { count: 0, entries: [], to_restore: [] };

function served(answers: Record<string, unknown> = {}) {
  return service({
    "GET /api/models": { models: [LOADED, READY], total: 2, loaded_model_id: 1 },
    "GET /api/health/detailed": HEALTH,
    "GET /api/health/gpus": HOST,
    "GET /api/saes/attachments": NONE,
    "POST /api/models/1/unload": READY,
    ...answers,
  });
}

const route = ({ method, path }: Request) => `${method} ${path}`;

it("unloads at once where nothing is cut, and asks where a request is in flight", async () => {
  const asked = served();
  const { unmount, container } = showPage(<Models />);
  await userEvent.click(await screen.findByRole("button", { name: "Unload one" }));
  await waitFor(() => expect(asked.map(route)).toContain("POST /api/models/1/unload"));
  expect(await violations(container)).toEqual([]);
  unmount();

  const busy = served({ "GET /api/health/detailed": { ...HEALTH, inference: { in_flight: 2, queue_waiting: 0 } } });
  showPage(<Models />);
  await userEvent.click(await screen.findByRole("button", { name: "Unload one" }));
  const dialog = await screen.findByRole("dialog", { name: "Unload one?" });
  expect(dialog.textContent).toContain("2 requests are in flight");
  expect(busy.map(route)).not.toContain("POST /api/models/1/unload");
  await userEvent.click(within(dialog).getByRole("button", { name: "Unload" }));
  await waitFor(() => expect(busy.map(route)).toContain("POST /api/models/1/unload"));
});

it("empties the form of a model of this machine once it is registered", async () => {
  served({ "POST /api/models": READY });
  const user = userEvent.setup();
  showPage(<Models />);
  await user.click(await screen.findByRole("radio", { name: "From this machine" }));
  const name = screen.getByLabelText<HTMLInputElement>(/Name in \/v1/);
  const label = screen.getByLabelText<HTMLInputElement>(/GGUF label/);
  await user.type(screen.getByPlaceholderText("/models/mine"), "/models/two");
  await user.type(name, "two");
  await user.type(label, "Q4_K_M");
  await user.click(screen.getByRole("button", { name: "Register" }));
  await waitFor(() => expect([name.value, label.value]).toEqual(["", ""]));
});

it("says why a lease refuses, and never asks for its id", async () => {
  const lease = { model_id: 1, model_name: "one", holder: "nightly", reason: "a run", expires_at: "2999-01-01T00:00:00Z" };
  served({ "GET /api/health/detailed": { ...HEALTH, lease } });
  showPage(<Models />);
  expect(await screen.findByText(/nightly holds a lease on one, which would be unloaded/)).toBeTruthy();
  expect(screen.getByRole("button", { name: "Load two" })).toHaveProperty("disabled", true);
  expect(screen.getByRole("button", { name: "Unload one" })).toHaveProperty("disabled", true);
});

it("shows a refusal for lack of memory as a table of the cards", async () => {
  const share = { device: "cuda:0", name: "H200", free_mb: 1024, needed_mb: 3072, weights_mb: 2048, kv_mb: 512, working_mb: 256, staging_mb: 128, context_mb: 128 };
  const lack = { code: "INSUFFICIENT_MEMORY", message: "does not fit", status: 507, details: { per_card: [share], can_ever_fit: false } };
  served({ "GET /api/models": { models: [READY], total: 1, loaded_model_id: null }, "POST /api/models/2/load": refused(lack) });
  showPage(<Models />);
  await userEvent.click(await screen.findByRole("button", { name: "Load two" }));
  const row = within(await screen.findByRole("alert")).getByRole("row", { name: /H200/ });
  expect(row.textContent).toContain("2.0 GiB");
});

it("the loaded model shows the parts of its memory, and no other model does", async () => {
  const part = { replica: null, device: "cpu", weights_mb: 5, cache_mb: 1, saes_mb: 2, process_mb: 400 };
  served({ "GET /api/health/gpus": { ...HOST, model_memory: { model_id: 1, parts: [part] } } });
  showPage(<Models />);
  const shown = await screen.findByRole("list", { name: "Memory of the loaded model" });
  expect(screen.getByRole("listitem", { name: "one" }).contains(shown)).toBe(true);
  expect(shown.textContent).toMatch(/other.* 392 MiB = process.* 400 MiB/);
});

it("a download shows its progress as it comes, is cancelled, and goes on where it ended", async () => {
  const download = { downloaded_bytes: 2 ** 30, total_bytes: 2 ** 32, percent: 25, speed_bps: 2 ** 21 };
  const going = { ...READY, status: "downloading", download_progress: 25, download, local_path: null };
  const failed = { ...going, status: "error", download: null, download_progress: null, error_message: "cancelled" };
  let model: typeof going | typeof failed = going;
  const asked = served({
    "GET /api/models": () => ({ models: [model], total: 1, loaded_model_id: null }),
    "POST /api/models/2/cancel": () => (model = failed),
    "POST /api/models": () => (model = going),
  });
  const { client } = showPage(<Models />);
  expect(await screen.findByText(/1\.0 GiB of 4\.0 GiB, 2\.0 MiB\/s/)).toBeTruthy();
  const report = { modelId: 2, progress: 50, downloadedBytes: 2 ** 31, totalBytes: 2 ** 32, speedBps: 2 ** 22 };
  act(() => arrived(client, "model:download:progress", report));
  expect(await screen.findByText(/2\.0 GiB of 4\.0 GiB, 4\.0 MiB\/s, 8 min 32 s left/)).toBeTruthy();
  expect(screen.getByRole<HTMLProgressElement>("progressbar", { name: "Progress of Download" }).value).toBe(50);
  await userEvent.click(screen.getByRole("button", { name: "Cancel two" }));
  await userEvent.click(await screen.findByRole("button", { name: "Resume two" }));
  expect(await screen.findByRole("button", { name: "Cancel two" })).toBeTruthy();
  expect(asked.filter(({ method }) => method === "POST").map(route)).toEqual([
    "POST /api/models/2/cancel",
    "POST /api/models",
  ]);
  expect(asked.findLast(({ method }) => method === "POST")?.body).toMatchObject({ repo_id: "acme/tiny", revision: "abc" });
});

it("a token of the hub is asked for when it is needed, once for a repository, and kept nowhere else", async () => {
  const gated = refused({ code: "GATED_MODEL_NO_TOKEN", message: "gated", status: 401 });
  const offered = { ...TINY, repo_id: "acme/gated", is_gated: true };
  const asked = served({
    "POST /api/models/preview": ({ body }: Request) =>
      (body as { repo_id: string; hub_token?: string }).hub_token === undefined ? gated : offered,
    "POST /api/models": READY,
  });
  const { client } = showPage(<Models />, "/models?repo=acme/gated");
  await userEvent.click(await screen.findByRole("button", { name: "Look at it" }));
  const field = await screen.findByLabelText("Hub token");
  expect(field.getAttribute("type")).toBe("password");
  await userEvent.type(field, "hf_secret");
  await userEvent.click(screen.getByRole("button", { name: "Look at it" }));
  await waitFor(() => expect(asked.at(-1)?.body).toEqual({ repo_id: "acme/gated", hub_token: "hf_secret" }));
  expect((field as HTMLInputElement).value).toBe("");
  expect(JSON.stringify({ ...localStorage, ...sessionStorage })).not.toContain("hf_secret");
  const kept = [client.getQueryCache().getAll().map(({ queryKey, state }) => [queryKey, state]), client.getMutationCache().getAll()];
  expect(JSON.stringify(kept)).not.toContain("hf_secret");
  await userEvent.click(await screen.findByRole("button", { name: "Download Q4_K_M" }));
  expect(screen.queryByLabelText("Hub token")).toBeNull();
  await waitFor(() =>
    expect(asked.find(({ path, method }) => method === "POST" && path === "/api/models")?.body).toMatchObject({
      hub_token: "hf_secret",
    }),
  );
  const repository = screen.getByRole("textbox", { name: "Repository" });
  await userEvent.clear(repository);
  await userEvent.type(repository, "acme/other{Enter}");
  await waitFor(() => expect(asked.findLast(({ path }) => path === "/api/models/preview")?.body).toEqual({ repo_id: "acme/other" }));
});

it("a preview shows the fit per place before a download, and a dash where nothing is known", async () => {
  const asked = served({ "POST /api/models/preview": TINY, "POST /api/models": READY });
  const { container } = showPage(<Models />, "/models?repo=acme/tiny");
  const look = await screen.findByRole("button", { name: "Look at it" });
  expect(asked.map(route)).not.toContain("POST /api/models/preview");
  await userEvent.click(look);
  expect(await screen.findByText("does not fit, 3.9 GiB free")).toBeTruthy();
  expect(screen.getByText("fits, 3.9 GiB free")).toBeTruthy();
  expect(container.textContent).not.toMatch(/NaN|undefined/);
  await userEvent.click(screen.getByRole("button", { name: "Download Q4_K_M" }));
  const body = { source: "huggingface", repo_id: "acme/tiny", gguf_label: "Q4_K_M" };
  await waitFor(() => expect(asked.find((request) => route(request) === "POST /api/models")?.body).toEqual(body));
  expect(await violations(container)).toEqual([]);
});

const REPLICA = {
  name: "replica-1", node: "gpu-1", address: "10.0.0.11", pid: 41, state: "serving", epoch: 7, requests: 3, slots: 8,
  gpu_indices: [0], devices: ["cuda:0"], memory_mb: [2048], kind: "a", restarts: 0, reason: null,
  since: "2026-01-01T00:00:00Z", replaces: null as string | null,
};
const LOST = { ...REPLICA, name: "replica-2", node: "gpu-2", pid: null, state: "lost", restarts: 2, reason: "ended by signal 9" };

function replicated(...replicas: (typeof REPLICA | typeof LOST)[]) {
  const serving = replicas.filter(({ state }) => state === "serving").length;
  const wanted = replicas.filter(({ state }) => state !== "draining").length;
  return { model_id: 1, wanted, serving, least: 1, strength: "degraded", replicas };
}

it("shows what each replica of the loaded model does, and follows their events", async () => {
  let replicas = replicated(REPLICA, LOST);
  served({ "GET /api/models": () => ({ models: [{ ...LOADED, replicas }, READY], total: 2, loaded_model_id: 1 }) });
  const { client, container } = showPage(<Models />);
  const shown = await screen.findByRole("region", { name: "Replicas of one" });
  expect(shown.textContent).toContain("1 of 2 serve");
  const lost = within(shown).getByRole("listitem", { name: "replica-2" });
  expect(lost.textContent).toContain("lost");
  expect(lost.textContent).toContain("gpu-2");
  expect(within(lost).getByText("ended by signal 9")).toBeTruthy();
  expect(lost.textContent).toContain("memory–");
  expect(within(shown).getByRole("listitem", { name: "replica-1" }).textContent).toMatch(/requests.*3 of 8.*epoch.*7.*restarts0/);
  expect(within(shown).getByRole("button", { name: "Drain replica-1" })).toHaveProperty("disabled", true);
  expect(await violations(container)).toEqual([]);
  replicas = replicated(REPLICA, { ...LOST, state: "serving" });
  act(() => arrived(client, "model:replica", { modelId: 1 }));
  await waitFor(() => expect(shown.textContent).toContain("2 of 2 serve"));
  expect(within(lost).getByText("Last fault: ended by signal 9")).toBeTruthy();
  expect(screen.getAllByRole("region", { name: /^Replicas of/ })).toHaveLength(1);
  replicas = replicated(REPLICA, { ...LOST, state: "starting", replaces: "replica-1" });
  act(() => arrived(client, "model:replica", { modelId: 1 }));
  await waitFor(() => expect(lost.textContent).toContain("in the place of replica-1"));
});

it("adds, drains and replaces replicas, and shows a refusal", async () => {
  const replicas = replicated(REPLICA, { ...LOST, state: "serving" });
  const asked = served({
    "GET /api/models": { models: [{ ...LOADED, replicas }], total: 1, loaded_model_id: 1 },
    "PUT /api/models/1/replicas": replicas,
    "POST /api/models/1/replicas/replica-2/drain": replicas,
    "POST /api/models/1/replicas/replica-1/replace": refused({ code: "REPLICA_NOT_FOUND", message: "no replica is called so", status: 404 }),
  });
  showPage(<Models />);
  await userEvent.click(await screen.findByRole("button", { name: "More replicas of one" }));
  await userEvent.click(screen.getByRole("button", { name: "Fewer replicas of one" }));
  await userEvent.click(screen.getByRole("button", { name: "Drain replica-2" }));
  await userEvent.click(screen.getByRole("button", { name: "Replace replica-1" }));
  expect((await screen.findByRole("alert")).textContent).toContain("no replica is called so");
  const changes = asked.filter(({ method }) => method !== "GET");
  expect(changes.map(route)).toEqual([
    "PUT /api/models/1/replicas",
    "PUT /api/models/1/replicas",
    "POST /api/models/1/replicas/replica-2/drain",
    "POST /api/models/1/replicas/replica-1/replace",
  ]);
  expect(changes.slice(0, 2).map(({ body }) => body)).toEqual([{ count: 3 }, { count: 1 }]);
});
