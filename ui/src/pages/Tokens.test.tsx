import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Tokens from "./Tokens";

const MODEL = { id: 1, name: "demo", quantization: "FP16", engine: "checkpoint", embedding_only: false, layers: 3 };
const near = (token_id: number, token: string, prob: number) => [{ token_id, token, prob }, { token_id: 9, token: " x", prob: 0.01 }];
const LENS = {
  tokens: ["One", " day"].map((token, token_id) => ({ token_id, token })),
  layers: [
    { layer: 0, positions: [near(7, " sea", 0.25), near(8, " he", 0.5)] },
    { layer: 2, positions: [near(1, " day", 0.75), near(8, " he", 0.9)] },
  ],
};
const READ = {
  model: "demo",
  choices: [{ logprobs: { tokens: ["One", " day", "."], token_logprobs: [null, -2, -1] } }],
  usage: { prompt_tokens: 2 },
};

const FEATURES = { sae_id: "sae_a", layer: 3, positions: [{ position: 1, features: [{ index: 90, value: 3, weight: 2 }] }] };

const TUNED = {
  ...{ id: "lens_1", name: "tuned", kind: "tuned", width: 64, layers: [0, 1], model_layers: 3, model_hint: "tiny" },
  ...{ unembed_hash: "00", file_bytes: 49_152, created_at: "2026-01-05T10:00:00Z", source: { kind: "huggingface" } },
};
const JOB = {
  ...{ id: "job_1", kind: "lens", state: "done", progress: 1, message: "is done", error: null, result: TUNED },
  ...{ created_at: "2026-01-05T10:00:00Z", finished_at: "2026-01-05T10:00:01Z" },
};

function served(model = {}, entries: object[] = [], hasFeatures = false, more: Record<string, unknown> = {}) {
  return service({
    "GET /api/models": { models: [{ ...MODEL, ...model }], total: 1, loaded_model_id: 1 },
    "GET /api/saes/attachments": { count: entries.length, entries },
    "POST /v1/completions": { ...READ, ...(hasFeatures ? { service: { sae_activations: FEATURES } } : {}) },
    "POST /api/lens": LENS,
    "GET /api/lenses": { lenses: [], total: 0 },
    ...more,
  });
}

it("without an SAE a text is read with the log-probability of each token", async () => {
  const sent = served();
  const { container } = showPage(<Tokens />, "/tokens");
  await waitFor(() => expect(screen.getByRole<HTMLButtonElement>("button", { name: "Read the text" }).disabled).toBe(false));
  await userEvent.click(screen.getByRole("button", { name: "Read the text" }));
  expect(await screen.findByText("7.4", { selector: ".figure-value" })).toBeTruthy();
  expect(screen.getByRole("combobox", { name: /colour/ })).toHaveProperty("value", "surprise");
  expect(screen.getByText(/No SAE is attached, so no features are read/)).toBeTruthy();
  expect(screen.queryByRole("region", { name: "Strongest features" })).toBeNull();
  expect(sent.find(({ path }) => path === "/v1/completions")?.body).not.toHaveProperty("return_sae_activations");
  await userEvent.click(screen.getByText("day"));
  expect(screen.getByText(/log-probability −2/)).toBeTruthy();
  expect(screen.queryByText(/No pass of the model/)).toBeNull();
  expect(await violations(container)).toEqual([]);
});

it("the logit lens shows after each layer which token comes next, when a person asks for it", async () => {
  const sent = served();
  const { container } = showPage(<Tokens />, "/tokens?text=One%20day");
  await waitFor(() => expect(screen.getByRole<HTMLButtonElement>("button", { name: "Read the text" }).disabled).toBe(false));
  await userEvent.click(screen.getByRole("button", { name: "Read the text" }));
  await userEvent.selectOptions(await screen.findByRole("combobox", { name: "Layers to read" }), "2");
  expect(sent.some(({ path }) => path === "/api/lens")).toBe(false);
  await userEvent.click(screen.getByRole("button", { name: "Read the layers" }));
  const grid = within(await screen.findByRole("group", { name: "The most probable next token after each layer" }));
  const rows = grid.getAllByRole("row").map((row) => row.textContent);
  expect(rows).toEqual(["afterOne day", "layer 2 day75 % he90 %", "layer 0 sea25 % he50 %"]);
  expect(sent.find(({ path }) => path === "/api/lens")?.body).toEqual({ text: "One day", top: 5, layers: [0, 2] });
  const open = within(screen.getByRole("region", { name: "The open token" }));
  expect(open.getByRole("heading").textContent).toBe("After  day, token 1");
  await userEvent.click(grid.getByRole("button", { name: /^Open token 0/ }));
  expect(open.getAllByRole("row").map((row) => row.textContent)).toEqual([
    "layer 2 day 75.0 % x 1.0 %",
    "layer 0 sea 25.0 % x 1.0 %",
  ]);
  expect(await violations(container)).toEqual([]);
});

it("a trained lens is registered, read with, and deleted after a question", async () => {
  const stored: object[] = [];
  const sent = served({}, [], false, {
    "GET /api/lenses": () => ({ lenses: [...stored], total: stored.length }),
    "POST /api/lenses": () => {
      stored.push(TUNED);
      return { job: JOB };
    },
    "GET /api/jobs/job_1": { job: JOB },
    "DELETE /api/lenses/lens_1": () => stored.pop() && { lens_id: "lens_1" },
  });
  const { container } = showPage(<Tokens />, "/tokens?text=One%20day");
  const user = userEvent.setup();
  await waitFor(() => expect(screen.getByRole<HTMLButtonElement>("button", { name: "Read the text" }).disabled).toBe(false));
  await user.click(screen.getByRole("button", { name: "Read the text" }));
  await user.click(await screen.findByText("Trained lenses"));
  await user.type(screen.getByRole("textbox", { name: "Name" }), "tuned");
  await user.click(screen.getByRole("radio", { name: "Hub" }));
  await user.selectOptions(screen.getByRole("combobox", { name: "Kind of the repository" }), "space");
  await user.type(screen.getByRole("textbox", { name: "Repository" }), "acme/lenses");
  await user.type(screen.getByRole("textbox", { name: "Folder or file in it" }), "lens/tiny");
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Register" }));
  const posts = () => sent.filter(({ method, path }) => method === "POST" && path.startsWith("/api/lens"));
  await waitFor(() =>
    expect(posts()[0]?.body).toEqual({
      ...{ name: "tuned", source: "huggingface", repository_type: "space" },
      ...{ repository_id: "acme/lenses", file_path: "lens/tiny" },
    }),
  );
  expect(await screen.findByRole("combobox", { name: "Lens" })).toHaveProperty("value", "lens_1");
  expect(screen.getByText("tuned · of tiny · 2 layers · 48.0 KiB")).toBeTruthy();
  await user.selectOptions(screen.getByRole("combobox", { name: "Layers to read" }), "2");
  await user.click(screen.getByRole("button", { name: "Read the layers" }));
  await waitFor(() => expect(posts()[1]?.body).toEqual({ text: "One day", top: 5, layers: [0, 2], kind: "lens_1" }));
  await user.click(screen.getByRole("button", { name: "Delete the lens tuned" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  await waitFor(() => expect(screen.queryByRole("combobox", { name: "Lens" })).toBeNull());
});

it.each([
  ["a GGUF model", { engine: "gguf" }, /is a GGUF model.*has no layers to hook/],
  ["an embedding model", { embedding_only: true }, /is an embedding model.*has no layers to hook/],
])("%s is read by nothing here, which the page says at once, with what works", async (_, model, why) => {
  served(model);
  showPage(<Tokens />, "/tokens");
  expect(await screen.findByText(why)).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Read the text" }).disabled).toBe(true);
  expect(screen.queryByRole("link", { name: "Attach an SAE" })).toBeNull();
});

it("a text of a link is read when a person asks for it, and not before", async () => {
  const asked = served({}, [{ sae_id: "sae_a", layer: 3 }]);
  showPage(<Tokens />, "/tokens?text=One%20day");
  const button = await screen.findByRole<HTMLButtonElement>("button", { name: "Read the text" });
  await waitFor(() => expect(button.disabled).toBe(false));
  expect(screen.getByDisplayValue("One day")).toBeTruthy();
  expect(asked.filter(({ method }) => method !== "GET")).toEqual([]);
  await userEvent.click(button);
  await waitFor(() =>
    expect(asked.find(({ path }) => path === "/v1/completions")?.body).toMatchObject({ prompt: "One day" }),
  );
});

it("a link whose SAE is not attached offers to attach it, and reads no other one", async () => {
  served({}, [{ sae_id: "sae_a", layer: 3 }]);
  showPage(<Tokens />, "/tokens?text=One%20day&sae=sae_b@2");
  expect((await screen.findByRole("link", { name: "Attach it" })).getAttribute("href")).toBe("/saes?attach=sae_b%402");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Read the text" }).disabled).toBe(true);
});

it("ranks features by their rarity where a corpus was read of the SAE, until a person chooses otherwise", async () => {
  const sent = served({}, [{ sae_id: "sae_a", layer: 3, has_corpus: true }], true);
  showPage(<Tokens />, "/tokens?text=One%20day");
  const button = await screen.findByRole<HTMLButtonElement>("button", { name: "Read the text" });
  await waitFor(() => expect(button.disabled).toBe(false));
  await userEvent.click(button);
  const ranks = () =>
    sent.flatMap(({ path, body }) =>
      path === "/v1/completions"
        ? [(body as { return_sae_activations: { rank: string } }).return_sae_activations.rank]
        : [],
    );
  await waitFor(() => expect(ranks().at(-1)).toBe("rarity"));
  await userEvent.click(await screen.findByRole("radio", { name: "value" }));
  await waitFor(() => expect(ranks().at(-1)).toBe("value"));
});
