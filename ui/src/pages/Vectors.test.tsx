import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service, type Request } from "../test/service";
import Vectors from "./Vectors";

const CALM = {
  ...{ id: "vec_1", name: "calm", content_digest: "3f0c11aa22bb33", model_hint: "llama", width: 128 },
  layers: [
    { layer: 2, site: "resid_post", norm: 1.5 },
    { layer: 3, site: "resid_post", norm: 3 },
  ],
  ...{ operation: "add", suggested_value: null as number | null, layer_convention: "gguf", layer_offset: -1, training: null },
  ...{ measured: null as unknown, not_measured: "no measurement was asked for" as string | null },
  source: { kind: "upload", format: "gguf", file: "calm.gguf", local_path: null, repository_id: null, revision: null },
  warnings: ["the file names layers one late"],
  created_at: "2026-01-05T10:00:00Z",
};
const JOB = {
  ...{ id: "job_1", kind: "vector_measurement", state: "done", progress: 1, message: "", error: null, result: null },
  ...{ created_at: "2026-01-05T10:00:00Z", started_at: null, ended_at: null },
};
const NEAR = {
  vector_id: "vec_1",
  features: [
    ...[{ layer: 3, site: "resid_post", sae_id: "sae_a", sae_layer: 3, sae_site: "resid_post", feature_idx: 90, label: "sea" }],
  ].map((one) => ({ ...one, cosine: 0.41 })),
  vectors: [{ vector_id: "vec_2", name: "storm", layer: 3, site: "resid_post", cosine: -0.5 }],
};

const written = ({ query }: Request) => ({
  vector_id: "vec",
  layers: [
    {
      ...{ layer: Number(query.get("layer")), site: "resid_post" },
      promotes: [{ token_id: 7, token: " waves", value: 0.73 }],
      suppresses: [{ token_id: 9, token: " throne", value: -0.54 }],
    },
  ],
});

function answers(more: Record<string, unknown> = {}) {
  const all = [CALM, { ...CALM, id: "vec_2", name: "storm", operation: "project", warnings: [] }];
  return {
    "GET /api/vectors": () => ({ vectors: all, total: all.length }),
    "GET /api/vectors/vec_1/neighbours": NEAR,
    "GET /api/vectors/vec_2/neighbours": { vector_id: "vec_2", features: [], vectors: [] },
    "GET /api/vectors/vec_1/tokens": written,
    "GET /api/vectors/vec_2/tokens": written,
    "DELETE /api/vectors/vec_1": () => all.shift() && { vector_id: "vec_1" },
    ...more,
  };
}

it("shows where a vector acts, how long it is at each layer, and what it is near to", async () => {
  const sent = service(answers());
  const { container } = showPage(<Vectors />);
  expect(await screen.findByText("the file names layers one late")).toBeTruthy();
  expect(screen.getByRole("img", { name: "Length of calm at each layer: 2 1.50, 3 3.00" })).toBeTruthy();
  expect(screen.getByText("layers 2 to 3, resid_post")).toBeTruthy();
  expect(screen.getByText("gguf, −1")).toBeTruthy();
  const near = await screen.findByRole("list", { name: "Nearest features" });
  expect(within(near).getByRole("link", { name: "sea" }).getAttribute("href")).toBe("/features/sae_a/3/90");
  expect(await violations(container)).toEqual([]);
  await userEvent.selectOptions(screen.getByRole("combobox", { name: "Layer of the vector" }), "3");
  await waitFor(() => expect(sent.at(-1)?.query.get("layer")).toBe("3"));
  await userEvent.click(await screen.findByRole("button", { name: "storm" }));
  expect(await screen.findByRole("heading", { name: "storm" })).toBeTruthy();
});

it("shows what a vector writes at one of its layers, and why nothing is known", async () => {
  const sent = service({
    ...answers(),
    "GET /api/vectors/vec_2/tokens": () =>
      refused({ code: "MODEL_NOT_LOADED", message: "the operation needs a loaded model", status: 400 }),
  });
  showPage(<Vectors />);
  const promotes = await screen.findByRole("list", { name: "Promotes" });
  expect(within(promotes).getByText("waves")).toBeTruthy();
  const asked = () => sent.filter(({ path }) => path.endsWith("/tokens")).map(({ query }) => query.get("layer"));
  expect(asked()).toEqual(["3"]);
  await userEvent.selectOptions(screen.getByRole("combobox", { name: "Layer of the direction" }), "2");
  await waitFor(() => expect(asked()).toEqual(["3", "2"]));
  await userEvent.click(await screen.findByRole("button", { name: "storm" }));
  expect(await screen.findByText("the operation needs a loaded model", { exact: false })).toBeTruthy();
});

it("leads to the Steer page with an edit: added, or projected out as the file says", async () => {
  service(answers());
  showPage(<Vectors />, "/vectors?id=vec_2");
  const edits = async () =>
    JSON.parse(
      new URLSearchParams((await screen.findByRole("link", { name: "Use it" })).getAttribute("href")?.split("?")[1]).get("e") ?? "",
    );
  expect(await edits()).toEqual([{ op: "ablate", vector: "vec_2" }]);
  await userEvent.click(screen.getByRole("button", { name: /^calm/ }));
  expect(await edits()).toEqual([{ op: "add", vector: "vec_1", value: 1 }]);
});

it("imports a file with what it does not say, and again after a refusal", async () => {
  const forms: Record<string, unknown>[] = [];
  service(
    answers({
      "POST /api/vectors": ({ body }: Request) => {
        forms.push(body as Record<string, unknown>);
        if (forms.length === 1)
          return refused({ code: "INVALID_VECTOR", message: "the file does not say its layer", status: 422 });
        return { ...CALM, name: "calm" };
      },
    }),
  );
  const { container } = showPage(<Vectors />);
  const user = userEvent.setup();
  await screen.findByText("the file names layers one late");
  await user.upload(screen.getByLabelText("Import a vector from files"), new File(["x"], "calm.npy"));
  expect(await screen.findByText("the file does not say its layer")).toBeTruthy();
  await user.click(screen.getByText("What the file does not say"));
  await user.type(screen.getByLabelText("Layer of a file with one direction"), "3");
  await user.selectOptions(screen.getByLabelText("What layer N of the file means"), "hf_hidden_states");
  await user.type(screen.getByLabelText("Added to every layer"), "-1");
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Import calm.npy again" }));
  const done = await screen.findByRole("list", { name: "Imported files" });
  expect(await within(done).findByText("imported", { exact: false })).toBeTruthy();
  expect(forms[0]).toEqual({ name: "calm", file: expect.any(File) });
  expect(forms[1]).toEqual({
    ...{ name: "calm", layer: "3", layer_convention: "hf_hidden_states", layer_offset: "-1" },
    file: expect.any(File),
  });
});

it("says where a vector acts best, or that nobody knows, and measures it by words", async () => {
  const damage = { nll_over_plain: 0.31, repetition_over_plain: 0, distinct: 0.6, is_unbroken: true };
  const row = { strength: 0.5, texts: 4, effect: 0.75, effect_low: 0.4, effect_high: 1, damage, sample: "waves and boats" };
  const measured = {
    ...{ model: "small", by: "words", words: ["sea"], probe: null, plain: 0, tokens: 24, temperature: 1, seed: 0 },
    layers: [
      { ...row, layer: 2 },
      { ...row, layer: 3, effect: 1, damage: { ...damage, nll_over_plain: 2.5, is_unbroken: false }, sample: "sea sea sea" },
    ],
    best: { layer: 2, strength: 0.5 },
    works: true,
    random: [{ effect: 0, effect_low: 0, effect_high: 0 }],
  };
  let known: unknown = null;
  const sent = service({
    ...answers(),
    "GET /api/vectors": () => ({
      vectors: [{ ...CALM, measured: known, not_measured: known === null ? "no measurement was asked for" : null }],
      total: 1,
    }),
    "POST /api/vectors/vec_1/measure": () => {
      known = measured;
      return { job: { ...JOB, state: "waiting" } };
    },
    "GET /api/jobs/job_1": { job: JOB },
  });
  const { container } = showPage(<Vectors />);
  const user = userEvent.setup();
  expect(await screen.findByText(/It is not measured: no measurement was asked for/)).toBeTruthy();
  await user.type(screen.getByLabelText("Words that tell whether it works"), "sea, boat");
  await user.click(screen.getByRole("button", { name: "Measure" }));
  expect(await screen.findByText(/Layer 2 with \+0\.5 has the largest effect/)).toBeTruthy();
  expect(screen.getByText("broken:", { exact: false })).toBeTruthy();
  const link = screen.getByRole("link", { name: "Use it" }).getAttribute("href")?.split("?")[1];
  expect(JSON.parse(new URLSearchParams(link).get("e") ?? "")).toEqual([{ op: "add", vector: "vec_1", value: 0.5, layers: [2] }]);
  expect(sent.find(({ method }) => method === "POST")?.body).toEqual({ words: ["sea", "boat"] });
  expect(await violations(container)).toEqual([]);
});

it("deletes a vector after a question", async () => {
  const sent = service(answers());
  showPage(<Vectors />);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Delete" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByRole("heading", { name: "storm" })).toBeTruthy();
  expect(sent.filter(({ method }) => method === "DELETE").map(({ path }) => path)).toEqual(["/api/vectors/vec_1"]);
});
