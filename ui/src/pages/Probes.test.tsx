import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service, type Request } from "../test/service";
import Probes from "./Probes";

const TRUTH = {
  ...{ id: "probe_1", name: "truth", content_digest: "3f0c11aa22bb33", model_hint: "llama", width: 128 },
  layers: [{ layer: 3, site: "resid_post", norm: 1.5, bias: -0.2 }],
  ...{ layer_convention: "resid_post", layer_offset: 0, warnings: ["the bias was 0"], created_at: "2026-01-05T10:00:00Z" },
  source: { kind: "trained", format: null, file: null, local_path: null, repository_id: null, revision: null },
  training: {
    ...{ method: "logistic", read: "last", site: "resid_post", positives: 20, negatives: 18, held_out: 11, best_layer: 3 },
    layers: [
      { layer: 3, auc_held_out: 0.97, auc_low: 0.9, auc_high: 1, separation: 3, norm: 1.5, auc_shuffled: 0.52, auc_random: null },
    ],
    neighbours: [{ sae_id: "sae_1", index: 90, cosine: 0.4 }],
  },
};

const JOB = {
  ...{ id: "job_1", kind: "probe_training", state: "running", progress: 0.25, message: "1 of 4 texts are read" },
  ...{ error: null as object | null, result: null as object | null, created_at: "2026-01-05T10:00:00Z", finished_at: null },
};
const LOADED = { id: 1, name: "demo", quantization: "FP16", engine: "checkpoint", embedding_only: false };

function shown(link = "/probes", { job = JOB as object, stored = [TRUTH] as object[] } = {}) {
  const all = [...stored];
  const sent = service({
    "GET /api/models": { models: [LOADED], total: 1, loaded_model_id: 1 },
    "POST /api/probes/train": { job: JOB },
    "GET /api/jobs/job_1": { job },
    "DELETE /api/jobs/job_1": null,
    "GET /api/probes": () => ({ probes: [...all], total: all.length }),
    "POST /api/probes": ({ body }: Request) => ({ ...TRUTH, name: (body as { name: string }).name }),
    "DELETE /api/probes/probe_1": () => all.shift() && { probe_id: "probe_1" },
  });
  return { sent, user: userEvent.setup(), ...showPage(<Probes />, link) };
}

it("shows how well a probe tells held-out texts, and the features near to it", async () => {
  const { container } = shown();
  const figures = await screen.findByRole("group", { name: "Figures of each layer" });
  const cells = within(figures).getAllByRole("cell").map(({ textContent }) => textContent);
  expect(cells).toEqual(["0.97", "0.90 to 1.00", "0.52", "–"]);
  expect(screen.getByRole("link", { name: "feature 90" }).getAttribute("href")).toBe("/features/sae_1/-/90");
  expect(screen.getByText("the bias was 0")).toBeTruthy();
  expect(screen.getByText(/AUC 0.97 at layer 3/)).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("imports the file of another tool with what it does not say, and deletes a probe after a question", async () => {
  const { sent, user } = shown();
  const choose = await screen.findByLabelText("Import a probe from files");
  await user.click(screen.getByText("What the file does not say"));
  expect(screen.queryByRole("combobox", { name: "Use" })).toBeNull();
  const beside = new File(["{}"], "probe_config.json");
  await user.upload(screen.getByLabelText("The JSON beside the weights"), beside);
  await user.upload(choose, new File(["x"], "probe_head.bin"));
  expect(await screen.findByText("imported", { exact: false })).toBeTruthy();
  const posted = sent.find(({ method }) => method === "POST")?.body;
  expect(posted).toEqual({ name: "probe_head", file: expect.any(File), metadata: expect.any(File) });
  await user.click(screen.getByRole("button", { name: "Delete" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByText(/No probe is stored yet/)).toBeTruthy();
});

it("trains a probe on two boxes of chats, shows how far it is, and cancels it", async () => {
  const { sent, user, container } = shown("/probes", { stored: [] });
  const box = await screen.findByRole("textbox", { name: "Texts with the concept" });
  await user.click(screen.getByRole("radio", { name: "a chat" }));
  expect(screen.getByText(/Write at least 2 examples/)).toBeTruthy();
  fireEvent.change(box, { target: { value: "The sea\n\nA ship" } });
  expect(await screen.findByText(/Begin each chat with/)).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Train" }).disabled).toBe(true);
  fireEvent.change(box, { target: { value: "user: The sea\nassistant: Waves\n\nuser: A ship" } });
  fireEvent.change(screen.getByRole("textbox", { name: "Texts without it" }), { target: { value: "user: A cow\n\nuser: Bread" } });
  fireEvent.change(screen.getByRole("textbox", { name: "Layers" }), { target: { value: "1-2" } });
  expect(screen.getByText("Give it a name.")).toBeTruthy();
  await user.type(screen.getAllByRole("textbox", { name: "Name" })[0] ?? document.body, "sea");
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Train" }));
  expect(await screen.findByText("1 of 4 texts are read")).toBeTruthy();
  expect(sent.find(({ method }) => method === "POST")?.body).toEqual({
    positives: [
      [{ role: "user", content: "The sea" }, { role: "assistant", content: "Waves" }],
      [{ role: "user", content: "A ship" }],
    ],
    negatives: [[{ role: "user", content: "A cow" }], [{ role: "user", content: "Bread" }]],
    ...{ name: "sea", method: "logistic", layers: [1, 2], read: "last", holdout: 0.3, seed: 0 },
  });
  await user.click(screen.getByRole("button", { name: "Cancel" }));
  await waitFor(() => expect(sent.some(({ method }) => method === "DELETE")).toBe(true));
});

it("trains on pairs that continue prompts, at another site, and reads the completions or one token", async () => {
  const { sent, user, container } = shown("/probes", { stored: [] });
  const fill = (name: string, value: string) => fireEvent.change(screen.getByRole("textbox", { name }), { target: { value } });
  await screen.findByRole("textbox", { name: "Texts with the concept" });
  await user.type(screen.getAllByRole("textbox", { name: "Name" })[0] ?? document.body, "sea");
  await user.click(screen.getByRole("radio", { name: "pairs" }));
  fill("Texts with the concept", "waves\nships");
  fill("Texts without it", "cows");
  expect(screen.getByText(/A pair has one of each/)).toBeTruthy();
  fill("Texts without it", "cows\nbread");
  await user.selectOptions(screen.getByRole("combobox", { name: "Of each example is read" }), "mean_completion");
  expect(screen.getByText(/A completion needs prompts/)).toBeTruthy();
  fill("Prompts of the pairs, if any", "He sees\nShe likes");
  await user.selectOptions(screen.getByRole("combobox", { name: "Site" }), "mlp_out");
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Train" }));
  const body = () => sent.filter(({ method }) => method === "POST").at(-1)?.body;
  await waitFor(() =>
    expect(body()).toEqual({
      pairs: [
        { prompt: "He sees", positive: " waves", negative: " cows" },
        { prompt: "She likes", positive: " ships", negative: " bread" },
      ],
      ...{ name: "sea", method: "logistic", layers: "all", site: "mlp_out", read: "mean_completion", holdout: 0.3, seed: 0 },
    }),
  );
  await user.selectOptions(screen.getByRole("combobox", { name: "Of each example is read" }), "index");
  const token = screen.getByRole("spinbutton", { name: "Token" });
  await user.clear(token);
  await user.type(token, "-3{Enter}");
  await user.click(screen.getByRole("button", { name: "Train" }));
  await waitFor(() => expect(body()).toMatchObject({ read: { index: -3 } }));
});

it("opens the probe that a job has trained, and says why a training failed", async () => {
  const other = { ...TRUTH, id: "probe_0", name: "lies", training: null };
  const { unmount } = shown("/probes?job=job_1", { job: { ...JOB, state: "done", result: TRUTH }, stored: [other, TRUTH] });
  expect(await screen.findByRole("group", { name: "Figures of each layer" })).toBeTruthy();
  unmount();
  const error = { code: "INVALID_PARAMETER", message: "the examples of both groups are alike", details: {} };
  shown("/probes?job=job_1", { job: { ...JOB, state: "failed", error } });
  expect(await screen.findByText("the examples of both groups are alike")).toBeTruthy();
});

it("draws the AUC of many layers, and says which of them the texts cannot tell from the best one", async () => {
  const [first] = TRUTH.training.layers;
  const layers = [3, 4, 5].map((layer) => ({ ...first, layer, auc_shuffled_most: 0.7 }));
  const many = { ...TRUTH, training: { ...TRUTH.training, layers, equal_layers: [3, 4] } };
  const { container } = shown("/probes", { stored: [many] });
  const drawn = await screen.findByRole("img", { name: /AUC on held-out texts/ });
  expect(drawn.getAttribute("aria-label")).toContain("best of the shuffled labels: 0.70 at 3");
  expect(screen.getByText(/These texts cannot tell it from layer 4\./)).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});
