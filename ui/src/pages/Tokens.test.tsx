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

function served(model = {}, entries: object[] = [], hasFeatures = false) {
  return service({
    "GET /api/models": { models: [{ ...MODEL, ...model }], total: 1, loaded_model_id: 1 },
    "GET /api/saes/attachments": { count: entries.length, entries },
    "POST /v1/completions": { ...READ, ...(hasFeatures ? { service: { sae_activations: FEATURES } } : {}) },
    "POST /api/lens": LENS,
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
