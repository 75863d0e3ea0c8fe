import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useLocation } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { read } from "../rules/link";
import { STEER } from "../rules/steer";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import Steer from "./Steer";

const SAE = { sae_id: "sae_a", layer: 3, site: "resid_post" };
const SEA = { index: 90, sae_id: "sae_a", layer: 3 };
const VECTOR = {
  ...{ id: "vec_1", name: "calm", width: 128, operation: "add", suggested_value: null, model_hint: null },
  layers: [2, 3, 4].map((layer) => ({ layer, site: "resid_post", norm: 1 })),
};
const REPORT = {
  ...{ state: "sha256=1", changed: true },
  edits: [
    { edit: 0, source: "request", op: "ablate", evaluated: 29, acted: 12, first: 3, last: 28, max_change: 0.414, at: [[3, 9], [11, 11]] },
    { edit: 1, source: "live", op: "add", evaluated: 29, acted: 0, first: null, last: null, max_change: 0, at: [] },
  ],
};

interface Body {
  interventions: { edits: object[] };
  [name: string]: unknown;
}
let address = "";

const sent: { method: string | undefined; path: string; body: unknown }[] = [];

/** The service, as far as the page asks it. `refusal` is the answer to a side with edits. */
function service({ attached = [SAE], refusal = null as object | null } = {}) {
  const written: Body[] = [];
  const live = { edits: [{ op: "ablate", vector: "vec_1" }], mode: "add", preserve_norm: false, enabled: true, epoch: 3 };
  sent.length = 0;
  vi.stubGlobal("fetch", async (url: string, options: RequestInit) => {
    const path = new URL(url).pathname;
    if (path.startsWith("/v1/")) {
      const body = JSON.parse(String(options.body)) as Body;
      written.push(body);
      const isEdited = body.interventions.edits.length > 0;
      if (isEdited && refusal !== null) return new Response(JSON.stringify({ error: refusal }), { status: 400 });
      return new Response(chunks(isEdited));
    }
    const data: Record<string, unknown> = {
      "/api/models": {
        models: [{ id: 1, name: "demo", quantization: "FP16", engine: "checkpoint", embedding_only: false }],
        ...{ total: 1, loaded_model_id: 1 },
      },
      "/api/saes/attachments": { count: attached.length, entries: attached },
      "/api/saes/steering": { enabled: false, values: {} },
      "/api/health/detailed": { active_profile: null, circuits: { serving: 0 } },
      "/api/saes/sae_a/features/90": { sae_id: "sae_a", feature_idx: 90, label: "sea", layer: 3, typical_strength: 47.6 },
      "/api/saes/sae_a/features/search": { features: [{ feature_idx: 90, label: "sea", cosine: null }], matched: 1 },
      "/api/saes/sae_a/labels": { labels: [{ feature_idx: 90, label: "sea" }], total: 40 },
      "/api/vectors": { vectors: [VECTOR], total: 1 },
      "/api/interventions": live,
      "/api/profiles": options.method === "POST" ? { id: "prof_1", name: "calmer" } : { profiles: [], total: 0 },
    };
    if (options.method !== "GET") sent.push({ method: options.method, path, body: JSON.parse(String(options.body ?? "null")) });
    if (path === "/api/interventions" && options.method === "DELETE") live.edits = [];
    return new Response(JSON.stringify({ success: true, data: data[path] ?? null, error: null }));
  });
  return written;
}

function chunks(isEdited: boolean): string {
  const parts = [
    { choices: [{ index: 0, delta: { content: isEdited ? "A quiet day." : "A storm." }, finish_reason: null }] },
    {
      choices: [{ index: 0, delta: {}, finish_reason: "stop" }],
      usage: { prompt_tokens: 9, completion_tokens: 4 },
      ...(isEdited ? { steering_report: REPORT } : {}),
    },
    ...(isEdited ? [{ choices: [], service: { logprobs: ["A", " quiet", " day", "."].map((token) => ({ token })) } }] : []),
  ];
  return `${parts.map((part) => `data: ${JSON.stringify({ model: "demo", ...part })}\n\n`).join("")}data: [DONE]\n\n`;
}

function Address() {
  address = useLocation().search;
  return null;
}

function open(edits: object[], more: Record<string, string> = {}) {
  const chat = JSON.stringify([{ role: "user", content: "Tell me." }]);
  const query = new URLSearchParams({ chat, f: "[]", e: JSON.stringify(edits), ...more });
  return showPage(
    <>
      <Steer />
      <Address />
    </>,
    `/steer?${query}`,
  );
}
const linked = () => read(new URLSearchParams(address), STEER);
const generate = async () => {
  const button = await screen.findByRole<HTMLButtonElement>("button", { name: "Generate" });
  await waitFor(() => expect(button.disabled).toBe(false));
  await userEvent.click(button);
};

afterEach(() => sessionStorage.clear());

it("writes both sides with the same prompt and seed, and shows what each edit did", async () => {
  const written = service();
  const { container } = open([{ op: "ablate", vector: "vec_1", positions: "generated" }]);
  expect(await screen.findByText("Take calm out, at the tokens of the answer")).toBeTruthy();
  await generate();
  const steered = within(screen.getByRole("article", { name: "Steered" }));
  const did = await steered.findByRole("list", { name: "What the edits did" });
  expect(within(did).getAllByRole("listitem").map((item) => item.textContent)).toEqual([
    "Take calm out, at the tokens of the answeracted at 12 of 29 tokens, from 3 to 28; largest change 41.4 %",
    "add, of liveacted at none of 29 tokens",
  ]);
  expect(screen.getByRole("article", { name: "Steered" }).textContent).toContain("A quiet day.");
  expect(screen.getByRole("article", { name: "Plain" }).textContent).toContain("A storm.");
  expect(steered.getByText("4 tokens, ended by itself")).toBeTruthy();
  expect(steered.getByText(/An operator changed the steering meanwhile/)).toBeTruthy();
  const [plain, edited] = written.toSorted((a, b) => a.interventions.edits.length - b.interventions.edits.length);
  expect(plain?.interventions).toEqual({ edits: [] });
  expect(edited?.interventions).toEqual({ edits: [{ op: "ablate", vector: "vec_1", positions: "generated" }] });
  expect(edited?.["return_steering_report"]).toBe(true);
  const tokens = await steered.findByRole("group", { name: "Tokens at which the edits acted" });
  const marks = () => [...tokens.querySelectorAll("mark")].map((mark) => [mark.textContent, mark.title]);
  expect(tokens.textContent).toBe("A quiet day.");
  expect(marks()).toEqual([["A", "position 9: edit 1"], [" day", "position 11: edit 1"]]);
  await userEvent.selectOptions(steered.getByRole("combobox", { name: /^Marked are the tokens/ }), "1");
  expect(marks()).toEqual([]);
  expect([plain?.["seed"], plain?.["messages"]]).toEqual([edited?.["seed"], edited?.["messages"]]);
  expect(await violations(container)).toEqual([]);
});

it("needs no SAE for the edit of a vector", async () => {
  const written = service({ attached: [] });
  open([{ op: "add", vector: "vec_1", value: 4 }]);
  await generate();
  expect(await screen.findByText(/12 of 29/)).toBeTruthy();
  expect(written).toHaveLength(2);
});

it("a refused edit says why, and ends the other side", async () => {
  const message = "interventions.edits[0].vector names no stored vector";
  service({ refusal: { message, code: "vector_not_found", param: "interventions.edits[0].vector" } });
  open([{ op: "ablate", vector: "vec_9" }]);
  await generate();
  expect(await screen.findByText(message)).toBeTruthy();
  expect(screen.getByText("The comparison failed.", { exact: false })).toBeTruthy();
});

it("an edit of a feature is made in words: what, where and when", async () => {
  service();
  const { container } = open([]);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Add an edit…" }));
  const form = within(screen.getByRole("dialog", { name: "Add an edit" }));
  const add = form.getByRole<HTMLButtonElement>("button", { name: "Add the edit" });
  expect(add.disabled).toBe(true);
  await user.type(form.getByRole("combobox", { name: "Search: Feature" }), "sea");
  await user.click(await form.findByRole("option", { name: /sea/ }));
  await user.selectOptions(form.getByRole("combobox", { name: "What is done" }), "at_most");
  await user.clear(form.getByRole("spinbutton", { name: "Value" }));
  await user.type(form.getByRole("spinbutton", { name: "Value" }), "3.5");
  await user.selectOptions(form.getByRole("combobox", { name: "Where" }), "output");
  await user.selectOptions(form.getByRole("combobox", { name: "When" }), "vector");
  expect(add.disabled).toBe(true);
  await user.selectOptions(await form.findByRole("combobox", { name: "Vector of the condition" }), "vec_1");
  await user.selectOptions(form.getByRole("combobox", { name: "The edit then acts" }), "rest");
  expect(
    await form.findByText(
      "Keep sea at 3.5 or below, at every token that predicts one of the answer, from the first token on where the part along calm is above 0.",
    ),
  ).toBeTruthy();
  expect(form.getByText("x + (min(a, value) − a) · d")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  await user.click(add);
  expect(linked().e).toEqual([
    {
      ...{ op: "at_most", feature: SEA, value: 3.5, positions: "output" },
      when: { vector: "vec_1", above: 0, hold: "rest" },
    },
  ]);
});

it("an edit of a vector is changed, switched off and removed", async () => {
  service();
  open([{ op: "add", vector: "vec_1", value: 4 }]);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Change: Add 4 × calm" }));
  const form = within(screen.getByRole("dialog", { name: "Change the edit" }));
  await user.selectOptions(form.getByRole("combobox", { name: "Counted" }), "unit");
  await user.selectOptions(await form.findByRole("combobox", { name: "At which layers" }), "some");
  await user.clear(form.getByRole("spinbutton", { name: "To layer" }));
  await user.type(form.getByRole("spinbutton", { name: "To layer" }), "3");
  await user.click(form.getByRole("button", { name: "Change the edit" }));
  const changed = { op: "add", vector: "vec_1", value: 4, unit: "unit", layers: { from: 2, to: 3 } };
  expect(linked().e).toEqual([changed]);
  const words = "Add calm with the length 4, at layers 2 to 3";
  await user.click(screen.getByRole("switch", { name: `Use: ${words}` }));
  expect(linked().e).toEqual([{ ...changed, off: 1 }]);
  await user.click(screen.getByRole("button", { name: `Remove: ${words}` }));
  expect(linked().e).toEqual([]);
});

it("a replacement is shown in words, changed without the loss of a field, switched off, sent as it is and removed", async () => {
  const written = service({ attached: [] });
  const replace = {
    ...{ op: "replace", site: "hook_z", layer: 3, heads: [1], positions: { prompt_positions: [5] } },
    source: { text: "The boat sailed", positions: "last_prompt" },
  };
  const { container } = open([replace]);
  const user = userEvent.setup();
  const words = "hook_z of layer 3, head 1 by that of “The boat sailed” at its last token, at position 5";
  await user.click(await screen.findByRole("button", { name: `Change: Replace ${words}` }));
  const form = within(screen.getByRole("dialog", { name: "Change the edit" }));
  expect(form.queryByRole("group", { name: "What is edited" })).toBeNull();
  expect(form.getByText("x + value · (s − x)")).toBeTruthy();
  const value = form.getByRole<HTMLInputElement>("spinbutton", { name: "Value" });
  expect(value.value).toBe("1");
  await user.clear(value);
  await user.type(value, "0.5");
  expect(await violations(container)).toEqual([]);
  await user.click(form.getByRole("button", { name: "Change the edit" }));
  expect(linked().e).toEqual([{ ...replace, value: 0.5 }]);
  await generate();
  await waitFor(() => expect(written).toHaveLength(2));
  expect(written.map(({ interventions }) => interventions.edits)).toContainEqual([{ ...replace, value: 0.5 }]);
  const half = "Move hook_z of layer 3, head 1 0.5 of the way to that of “The boat sailed” at its last token, at position 5";
  await user.click(screen.getByRole("switch", { name: `Use: ${half}` }));
  expect(linked().e).toEqual([{ ...replace, value: 0.5, off: 1 }]);
  await user.click(screen.getByRole("button", { name: `Remove: ${half}` }));
  expect(linked().e).toEqual([]);
});

it("positions of one's own are JSON, and no form is sent while they are none", async () => {
  service();
  open([{ op: "ablate", vector: "vec_1", positions: { tokens: [7], special_tokens: false } }]);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: /^Change: Take calm out/ }));
  const form = within(screen.getByRole("dialog"));
  const field = form.getByRole<HTMLTextAreaElement>("textbox", { name: /^Positions, as/ });
  expect(JSON.parse(field.value)).toEqual({ tokens: [7], special_tokens: false });
  await user.clear(field);
  expect(form.getByRole<HTMLButtonElement>("button", { name: "Change the edit" }).disabled).toBe(true);
  await user.type(field, '{{"prompt_positions": [[0, -1]}');
  await user.click(form.getByRole("button", { name: "Change the edit" }));
  expect(linked().e).toEqual([{ op: "ablate", vector: "vec_1", positions: { prompt_positions: [0, -1] } }]);
});

it("live edits are shown and cleared, and edits of the page are made live", async () => {
  service();
  const { container } = open([{ op: "add", vector: "vec_1", value: 4 }], { auto: "0" });
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Make the edits live…" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Make live" }));
  const shown = within(await screen.findByRole("region", { name: "Live edits" }));
  expect(await shown.findByText("Take calm out")).toBeTruthy();
  expect(sent.at(-1)).toEqual({
    ...{ method: "PUT", path: "/api/interventions" },
    body: { edits: [{ op: "add", vector: "vec_1", value: 4 }] },
  });
  expect(await violations(container)).toEqual([]);
  await generate();
  await waitFor(() => expect(sent.at(-1)?.path).toBe("/api/compare"));
  expect(sent.at(-1)?.body).toMatchObject({ intensities: [0, 1] });
  expect(sent.at(-1)?.body).not.toHaveProperty("interventions");
  await user.click(shown.getByRole("button", { name: "Clear the live edits" }));
  expect(await shown.findByText(/No edit acts on the requests of everybody/)).toBeTruthy();
  expect(sent.at(-1)?.method).toBe("DELETE");
});

it("a sweep makes the edits at each intensity, and a profile keeps them", async () => {
  service();
  open([{ op: "add", vector: "vec_1", value: 4 }], { auto: "0" });
  const user = userEvent.setup();
  const sweep = await screen.findByRole<HTMLButtonElement>("button", { name: "Sweep" });
  await waitFor(() => expect(sweep.disabled).toBe(false));
  await user.click(sweep);
  await waitFor(() => expect(sent.at(-1)?.path).toBe("/api/compare"));
  expect(sent.at(-1)?.body).toMatchObject({
    ...{ interventions: { edits: [{ op: "add", vector: "vec_1", value: 4 }] }, intensities: [0, 0.5, 1, 1.5] },
  });
  await user.click(screen.getByRole("button", { name: "Save as profile…" }));
  const form = within(screen.getByRole("dialog", { name: "Save as a profile" }));
  expect(form.getByRole<HTMLInputElement>("textbox", { name: "Name" }).value).toBe("Add 4 × calm");
  await user.click(form.getByRole("button", { name: "Save 1 edit" }));
  await waitFor(() => expect(sent.at(-1)?.path).toBe("/api/profiles"));
  expect(sent.at(-1)?.body).toEqual({ name: "Add 4 × calm", edits: [{ op: "add", vector: "vec_1", value: 4 }], model_id: "1" });
});
