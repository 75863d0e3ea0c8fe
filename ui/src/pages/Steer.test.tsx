import { act, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter, useLocation } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { request } from "../api/client";
import { queryClient } from "../api/queries";
import { answered } from "../api/reach";
import { Notices } from "../parts/Notices";
import { read } from "../rules/link";
import { STEER } from "../rules/steer";
import { violations } from "../test/axe";
import Steer from "./Steer";

const SAE = { sae_id: "sae_a", layer: 3, site: "resid_post" };
const MODEL = { id: 1, name: "steerserve-demo", quantization: "FP16", engine: "checkpoint", embedding_only: false };
const FEATURE = { sae_id: "sae_a", feature_idx: 90, label: "sea", layer: 3, typical_strength: 47.6 };
const OTHER = { sae_id: "sae_b", layer: 2, site: "resid_post" };
const SEA = { index: 90, value: 52.5, sae_id: "sae_a", layer: 3 };
const CHAT = encodeURIComponent(JSON.stringify([{ role: "user", content: "Tell me a story." }]));
const READY = `/steer?chat=${CHAT}&f=[[90,52.5,1]]`;

interface Sent {
  method: string;
  path: string;
  body: Record<string, unknown>;
}
let address = "";
let isAway = false;

/** The service, as far as the page asks it. `streamed` is what a comparison answers. */
function service({ streamed = story() as BodyInit, attached = [SAE], live = {}, loaded = 1 as number | null, model = {} } = {}) {
  const sent: Sent[] = [];
  const values: Record<string, number> = { ...live };
  const held = { isHeld: false };
  vi.stubGlobal("fetch", (url: string, options: RequestInit) => {
    const path = new URL(url).pathname;
    const body = typeof options.body === "string" ? (JSON.parse(options.body) as Record<string, unknown>) : {};
    sent.push({ method: options.method ?? "GET", path, body });
    if (isAway) return Promise.reject(new TypeError("network error"));
    if (path === "/api/compare" && held.isHeld) return untilAborted(options.signal);
    if (path === "/api/compare") return Promise.resolve(new Response(streamed));
    if (path === "/v1/completions" && body["stream"] !== true) return Promise.resolve(new Response(JSON.stringify(SCORED)));
    if (path.startsWith("/v1/")) return Promise.resolve(new Response(chunksOf(path)));
    if (path === "/api/saes/steering" && options.method === "POST") {
      values[String(body["feature_idx"])] = Number(body["value"]);
    }
    const data: Record<string, unknown> = {
      "/api/models": {
        models: [{ ...MODEL, ...model }],
        total: 1,
        loaded_model_id: loaded,
      },
      "/api/saes/attachments": { count: attached.length, entries: attached },
      "/api/saes/steering": { enabled: Object.keys(values).length > 0, values },
      "/api/health/detailed": { active_profile: null, circuits: { serving: 0 } },
      "/api/saes/sae_a/features/90": FEATURE,
      "/api/saes/sae_a/features/search": { features: [{ feature_idx: 90, label: "sea", cosine: null }], matched: 1 },
      "/api/saes/sae_a/labels": { labels: [{ feature_idx: 90, label: "sea" }], total: 40 },
      "/api/saes/sae_b/labels": { labels: [{ feature_idx: 90, label: "castle" }], total: 40 },
      "/api/profiles": { profiles: [], name: "castle" },
      "/api/saes": { saes: [{ id: "sae_b", name: "b" }], total: 1 },
    };
    return Promise.resolve(new Response(JSON.stringify({ success: true, data: data[path], error: null })));
  });
  return { sent, held, compared: () => sent.filter(({ path }) => path === "/api/compare").map(({ body }) => body) };
}

function untilAborted(signal: AbortSignal | null | undefined): Promise<Response> {
  return new Promise((_, reject) => {
    signal?.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
  });
}

const scores = (text: string, logprob: number) => ({
  logprobs: { tokens: ["<s>", text], token_logprobs: [null, logprob] },
});
const SCORED = { choices: [scores("He rode to the castle.", -1), scores("He rode to the sea.", -2.5)] };

function story(): string {
  const sides = [0, 1].map((side) => ({
    side,
    intensity: side,
    steering: side ? { "sae_a@3": { 90: 52.5 } } : {},
    steering_state: null,
  }));
  const text = (side: number, words: string) => [
    "text",
    { side, intensity: side, text: words, finish_reason: "stop", completion_tokens: 3, token: null },
  ];
  const events = [
    ["started", { model: "steerserve-demo", prompt_tokens: 1, sae: SAE, sides }],
    ["prompt", { side: 0, tokens: [{ position: 0, text: "<s>", features: [] }] }],
    text(0, "He rode to the castle."),
    text(1, "He rode to the sea."),
    ["done", {}],
  ];
  return events.map(([name, data]) => `event: ${String(name)}\ndata: ${JSON.stringify(data)}\n\n`).join("");
}

/** A streamed answer of /v1, as chat and as continued text. */
function chunksOf(path: string): string {
  const part = (text: string) => (path.includes("chat") ? { delta: { content: text } } : { text });
  const chunks = [
    { choices: [{ index: 0, ...part("He rode "), finish_reason: null }] },
    { choices: [{ index: 0, ...part("home."), finish_reason: null }] },
    { choices: [{ index: 0, ...part(""), finish_reason: "stop" }] },
    { choices: [], usage: { prompt_tokens: 9, completion_tokens: 4 } },
  ].map((chunk) => `data: ${JSON.stringify({ model: "steerserve-demo", ...chunk })}\n\n`);
  return `${chunks.join("")}data: [DONE]\n\n`;
}

function Address() {
  const { search } = useLocation();
  address = search;
  return null;
}

function open(path: string) {
  return render(
    <QueryClientProvider client={queryClient()}>
      <MemoryRouter initialEntries={[path]}>
        <Steer />
        <Notices />
        <Address />
      </MemoryRouter>
    </QueryClientProvider>,
  );
}
const enabled = async (name: string) => {
  const button = await screen.findByRole<HTMLButtonElement>("button", { name });
  await waitFor(() => expect(button.disabled).toBe(false));
  return button;
};
const generate = async () => fireEvent.click(await enabled("Generate"));
const side = (name: string) => within(screen.getByRole("article", { name }));

afterEach(() => {
  isAway = false;
  answered();
  sessionStorage.clear();
});

it("on the first visit to the demo, one click shows two texts part", async () => {
  const { compared } = service();
  const { container } = open("/steer");
  expect(await screen.findByDisplayValue("Tell me a story.")).toBeTruthy();
  expect(await screen.findByRole("slider", { name: "Strength of sea" })).toBeTruthy();
  await generate();
  await waitFor(() => expect(side("Plain").getByText("castle", { selector: "mark" })).toBeTruthy());
  expect(side("Steered").getByText("sea", { selector: "mark" })).toBeTruthy();
  expect(compared()).toEqual([
    expect.objectContaining({
      messages: [{ role: "user", content: "Tell me a story." }],
      sae_steering: { features: [SEA] },
      intensities: [0, 1],
      seed: 1,
      stream: true,
    }),
  ]);
  expect(await violations(container)).toEqual([]);
});

it("values of this page travel with its requests, and nobody else is touched", async () => {
  const { sent, compared } = service();
  open(READY);
  await generate();
  await waitFor(() => expect(compared()).toHaveLength(1));
  const box = await screen.findByRole("spinbutton", { name: "Strength of sea, exact" });
  fireEvent.change(box, { target: { value: "20" } });
  fireEvent.keyDown(box, { key: "Enter" });
  await waitFor(() => expect(compared()[1]?.["sae_steering"]).toEqual({ features: [{ ...SEA, value: 20 }] }));
  await waitFor(() => expect(new URLSearchParams(address).get("f")).toBe('[[90,20,1,"sae_a@3"]]'));
  expect(sent.filter(({ method, path }) => method !== "GET" && path.startsWith("/api/saes/steering"))).toEqual([]);
});

it("live values are set in the service, which the page says", async () => {
  const { sent } = service({ live: { "90": 10 } });
  open(`${READY}&for=live`);
  expect(await screen.findByText("Everybody is steered.")).toBeTruthy();
  const box = await screen.findByRole("spinbutton", { name: "Strength of sea, exact" });
  fireEvent.change(box, { target: { value: "30" } });
  await act(async () => fireEvent.keyDown(box, { key: "Enter" }));
  await waitFor(() =>
    expect(sent.find(({ method, path }) => method === "POST" && path === "/api/saes/steering")?.body).toEqual({
      feature_idx: 90,
      value: 30,
      sae_id: "sae_a",
      layer: 3,
    }),
  );
});

it("a link that brings only a feature keeps the prompt that the tab had", async () => {
  service();
  sessionStorage.setItem("steerserve.steer", "as=prompt&prompt=One+day&f=[]");
  open("/steer?f=[[90,20,1]]&sae=sae_a@3");
  expect(await screen.findByDisplayValue("One day")).toBeTruthy();
  expect(await screen.findByRole("slider", { name: "Strength of sea" })).toBeTruthy();
});

it("shows a refusal with its code and the next step", async () => {
  const refused = { code: "STEERING_CHANGED", message: "an operator changed the steering", details: {} };
  service({ streamed: `event: error\ndata: ${JSON.stringify(refused)}\n\n` });
  open(READY);
  await generate();
  expect(await screen.findByText("STEERING_CHANGED")).toBeTruthy();
  expect(screen.getByText(/Somebody changed the live values/)).toBeTruthy();
});

it("without a model or an SAE the next step is named", async () => {
  service({ attached: [], loaded: null });
  open(READY);
  expect(await screen.findByRole("link", { name: "Load a model" })).toBeTruthy();
  expect((await screen.findAllByRole("link", { name: "Attach an SAE" })).length).toBeGreaterThan(0);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Generate" }).disabled).toBe(true);
});

it("a sweep writes the prompt at all intensities at once, and says how much of each text stays", async () => {
  const { sent, compared } = service();
  const { container } = open(READY);
  const list = await screen.findByRole("textbox", { name: "Intensities of the sweep" });
  fireEvent.change(list, { target: { value: "0, 3" } });
  expect(list.getAttribute("aria-invalid")).toBe("true");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Sweep" }).disabled).toBe(true);
  fireEvent.change(list, { target: { value: "0, 1" } });
  fireEvent.click(await enabled("Sweep"));
  expect(await screen.findByText(/[1-9]\d % same words/)).toBeTruthy();
  const multiple = screen.getByRole("group", { name: "The text at intensity 1" });
  expect(within(multiple).getByText("sea", { selector: "mark" })).toBeTruthy();
  expect(compared()).toEqual([expect.objectContaining({ sae_steering: { features: [SEA] }, intensities: [0, 1] })]);
  await waitFor(() => expect(new URLSearchParams(address).get("sweep")).toBe("[0,1]"));
  expect(await screen.findByText("−2.50")).toBeTruthy();
  expect(sent.find(({ path }) => path === "/v1/completions")?.body).toMatchObject({
    prompt: ["<s>He rode to the castle.", "<s>He rode to the sea."],
    add_special_tokens: false,
  });
  expect(screen.getAllByText("0 %", { selector: "dd" })).toHaveLength(2);
  fireEvent.click(screen.getByRole("button", { name: "Open the text at intensity 1" }));
  expect(screen.getByRole("dialog", { name: "The text at λ 1.00" }).textContent).toContain("He rode to the sea.");
  expect(await violations(container)).toEqual([]);
});

it("a conversation grows by the one whose turn it is, and is sent as it is written", async () => {
  const { compared } = service();
  open(READY);
  fireEvent.click(await screen.findByRole("button", { name: "Add a message" }));
  fireEvent.change(screen.getByRole("textbox", { name: "Message 2, of the assistant" }), { target: { value: "Once." } });
  fireEvent.click(screen.getByRole("button", { name: "Add a message" }));
  fireEvent.change(screen.getByRole("textbox", { name: "Message 3, of the user" }), { target: { value: "Go on." } });
  fireEvent.change(screen.getByRole("combobox", { name: "Role of message 1" }), { target: { value: "system" } });
  fireEvent.click(screen.getByRole("button", { name: "Remove message 2" }));
  fireEvent.click(await enabled("Generate"));
  await waitFor(() => expect(compared()).toHaveLength(1));
  expect(compared()[0]?.["messages"]).toEqual([
    { role: "system", content: "Tell me a story." },
    { role: "user", content: "Go on." },
  ]);
});

it("texts that were written with other settings are marked", async () => {
  const { compared } = service();
  open(`${READY}&auto=0`);
  await generate();
  await waitFor(() => expect(screen.getByText(/Both sides are complete/)).toBeTruthy());
  fireEvent.click(await enabled("Sweep"));
  await waitFor(() => expect(compared()).toHaveLength(2));
  expect(screen.queryByText(/Written with other settings/)).toBeNull();
  const seed = screen.getByRole("spinbutton", { name: "Seed" });
  fireEvent.change(seed, { target: { value: "7" } });
  fireEvent.keyDown(seed, { key: "Enter" });
  expect(await screen.findAllByText("Written with other settings: seed.")).toHaveLength(2);
  await generate();
  await waitFor(() => expect(screen.getAllByText("Written with other settings: seed.")).toHaveLength(1));
  expect(compared()[2]?.["seed"]).toBe(7);
});

it("a comparison that is stopped before its first text leaves the texts before under their own settings", async () => {
  const { held } = service();
  open(READY);
  await generate();
  await waitFor(() => expect(screen.getByText(/Both sides are complete/)).toBeTruthy());
  held.isHeld = true;
  const seed = screen.getByRole("spinbutton", { name: "Seed" });
  fireEvent.change(seed, { target: { value: "7" } });
  fireEvent.blur(seed);
  fireEvent.click(await screen.findByRole("button", { name: /Stop/ }));
  expect(await screen.findByText(/Stopped. The texts are those of the comparison before./)).toBeTruthy();
  expect(screen.getByText("Written with other settings: seed.")).toBeTruthy();
});

it("a comparison that leaving a field began is not sent again by the click that left it", async () => {
  const { compared, held } = service();
  open(READY);
  await generate();
  await waitFor(() => expect(screen.getByText(/Both sides are complete/)).toBeTruthy());
  held.isHeld = true;
  const seed = screen.getByRole("spinbutton", { name: "Seed" });
  const button = await enabled("Generate");
  fireEvent.change(seed, { target: { value: "7" } });
  fireEvent.pointerDown(button);
  fireEvent.blur(seed);
  expect(button.textContent).toContain("Stop");
  fireEvent.click(button, { detail: 1 });
  await waitFor(() => expect(compared()).toHaveLength(2));
  expect(button.textContent).toContain("Stop");
  fireEvent.pointerDown(button);
  fireEvent.click(button, { detail: 1 });
  expect(await enabled("Generate")).toBe(button);
});

it("features of several SAEs steer together, and choosing another layer keeps them", async () => {
  const { compared } = service({ attached: [OTHER, SAE] });
  open(`/steer?chat=${CHAT}&f=[[90,52.5,1]]&sae=sae_a@3`);
  fireEvent.change(await screen.findByRole("combobox", { name: /^SAE/ }), { target: { value: "sae_b@2" } });
  fireEvent.change(screen.getByRole("combobox", { name: "Add a feature" }), { target: { value: "90:-2" } });
  fireEvent.click(await screen.findByRole("option", { name: /Add 1 feature/ }));
  expect(await screen.findByRole("slider", { name: "Strength of castle" })).toBeTruthy();
  await generate();
  await waitFor(() => expect(compared()).toHaveLength(1));
  expect(compared()[0]).toMatchObject({
    sae_steering: { features: [SEA, { index: 90, value: -2, sae_id: "sae_b", layer: 2 }] },
    activations: { sae_id: "sae_b", layer: 2 },
  });
  expect(new URLSearchParams(address).get("f")).toBe('[[90,52.5,1,"sae_a@3"],[90,-2,1,"sae_b@2"]]');
});

it("a link whose SAE is not attached offers to attach it, and steers nothing else", async () => {
  const { sent, compared } = service();
  open(`/steer?chat=${CHAT}&f=[[90,52.5,1]]&sae=sae_b@2`);
  expect(await screen.findByText(/which is not attached there/)).toBeTruthy();
  const button = screen.getByRole<HTMLButtonElement>("button", { name: "Generate" });
  expect(button.disabled).toBe(true);
  fireEvent.click(await enabled("Attach it"));
  await waitFor(() =>
    expect(sent.find(({ path }) => path === "/api/saes/attach-set")?.body).toEqual({
      saes: [{ sae_id: "sae_b", layer: 2 }],
    }),
  );
  fireEvent.click(screen.getByRole("button", { name: "Remove the feature" }));
  fireEvent.click(await enabled("Generate"));
  await waitFor(() => expect(compared()).toHaveLength(1));
  expect(compared()[0]).toMatchObject({ intensities: [0] });
  expect(compared()[0]?.["sae_steering"]).toBeUndefined();
});

it("a link that brings a feature shows it where the page was last live for everyone", async () => {
  service();
  sessionStorage.setItem("steerserve.steer", "as=prompt&prompt=One+day&for=live");
  open('/steer?f=[[90,20,1,"sae_a@3"]]&sae=sae_a@3');
  expect(await screen.findByRole("slider", { name: "Strength of sea" })).toBeTruthy();
  expect(screen.getByText("Nobody else is touched.")).toBeTruthy();
});

it("a link with more features than the page steers is refused in words, and sends nothing for them", async () => {
  const { sent } = service();
  const many = Array.from({ length: 3000 }, (_, index) => [index, 1, 1, "sae_a@3"]);
  open(`/steer?chat=${CHAT}&f=${encodeURIComponent(JSON.stringify(many))}`);
  expect(await screen.findByText(/left out: f must be at most 100 features/)).toBeTruthy();
  expect(await screen.findByText(/Nothing steers yet. Search a feature by its label, or open/)).toBeTruthy();
  expect(sent.length).toBeLessThan(20);
});

it("features that are added beyond the bound are refused in words", async () => {
  service();
  const most = Array.from({ length: 100 }, (_, index) => [index, 1, 1, "sae_a@3"]);
  open(`/steer?chat=${CHAT}&f=${encodeURIComponent(JSON.stringify(most))}`);
  fireEvent.change(await screen.findByRole("combobox", { name: "Add a feature" }), { target: { value: "100:2" } });
  fireEvent.click(await screen.findByRole("option", { name: /Add 1 feature/ }));
  expect(await screen.findByText(/steers at most 100 features at once/)).toBeTruthy();
  expect(JSON.parse(new URLSearchParams(address).get("f") ?? "")).toHaveLength(100);
});

it("values of the page are saved as a profile of their SAE, and do not go live", async () => {
  const { sent } = service({ attached: [SAE, OTHER] });
  open(`/steer?chat=${CHAT}&f=[[90,52.5,1,"sae_a@3"],[90,-2,1,"sae_b@2"],[4,1,0,"sae_b@2"]]`);
  fireEvent.click(await enabled("Save as profile…"));
  fireEvent.change(await screen.findByRole("combobox", { name: /A profile holds the values of one SAE/ }), {
    target: { value: "sae_b@2" },
  });
  expect(await screen.findByDisplayValue("castle")).toBeTruthy();
  fireEvent.click(await enabled("Save 1 value"));
  await waitFor(() =>
    expect(sent.filter(({ method, path }) => method === "POST" && path !== "/api/compare")).toEqual([
      {
        method: "POST",
        path: "/api/profiles",
        body: { name: "castle", steering: { "90": -2 }, sae_id: "sae_b", layer: 2, model_id: "1" },
      },
    ]),
  );
});

it("without an SAE the model answers in the plain column alone", async () => {
  const { sent, compared } = service({ attached: [] });
  const { container } = open(READY);
  await generate();
  await waitFor(() => expect(side("Plain").getByText("He rode home.")).toBeTruthy());
  expect(side("Plain").getByText("4 tokens, ended by itself")).toBeTruthy();
  expect(screen.queryByRole("article", { name: "Steered" })).toBeNull();
  expect(screen.getByText(/No SAE is attached/, { selector: ".side-note" })).toBeTruthy();
  expect(sent.find(({ path }) => path === "/v1/chat/completions")?.body).toEqual({
    ...{ model: "steerserve-demo", messages: [{ role: "user", content: "Tell me a story." }] },
    ...{ max_tokens: 96, temperature: 0, top_p: 1, seed: 1, stream: true, stream_options: { include_usage: true } },
  });
  expect(compared()).toEqual([]);
  // the feature, which no SAE has yet, stays in the link
  expect(screen.queryByText(/was left out/)).toBeNull();
  expect(read(new URLSearchParams(address), STEER).f).toEqual([[90, 52.5, 1, ""]]);
  expect(screen.queryByText(/Written with other settings/)).toBeNull();
  expect(screen.queryByRole("region", { name: "Intensity sweep" })).toBeNull();
  expect(await violations(container)).toEqual([]);
});

it("a GGUF model has no layers to hook, which the page says at once, and still continues a prompt", async () => {
  const { sent } = service({ attached: [], model: { engine: "gguf" } });
  open('/steer?as=prompt&prompt=One+day&f=[[90,52.5,1,"sae_a@3"]]');
  expect(await screen.findByText(/has no layers to hook/)).toBeTruthy();
  expect(screen.queryByText(/which is not attached there/)).toBeNull();
  expect(screen.queryByRole("link", { name: "Attach an SAE" })).toBeNull();
  // llama.cpp takes no seeds
  expect(screen.queryByRole("spinbutton", { name: "Seed" })).toBeNull();
  await generate();
  await waitFor(() => expect(side("Plain").getByText("He rode home.")).toBeTruthy());
  const { body } = sent.find(({ path }) => path === "/v1/completions") ?? {};
  expect(body).toMatchObject({ model: "steerserve-demo", prompt: "One day", stream: true });
  expect(body).not.toHaveProperty("seed");
});

it("an embedding model writes no text, which the page says at once, with the request that works", async () => {
  service({ attached: [], model: { embedding_only: true } });
  open(READY);
  expect(await screen.findByText(/is an embedding model/)).toBeTruthy();
  expect(screen.getByText(/\/v1\/embeddings/, { selector: "code" })).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Generate" }).disabled).toBe(true);
  expect(screen.queryByRole("link", { name: "Attach an SAE" })).toBeNull();
});

it("a comparison that the service drops is lost, not refused, until the service is back", async () => {
  const dropped = new ReadableStream<Uint8Array>({
    start(controller) {
      controller.enqueue(new TextEncoder().encode(story().split("\n\n").slice(0, 2).join("\n\n") + "\n\n"));
    },
    pull: () => {
      isAway = true;
      return Promise.reject(new TypeError("network error"));
    },
  });
  service({ streamed: dropped });
  open(READY);
  await generate();
  const notice = await screen.findByRole("alert");
  expect(notice.textContent).toContain("Connection lost.");
  expect(notice.textContent).not.toMatch(/Refused|PAGE_ERROR|asks to wait/);
  expect(await screen.findByText("The connection was lost before the text was complete.")).toBeTruthy();
  isAway = false;
  await act(() => request("get", "/api/health"));
  await waitFor(() => expect(screen.queryByRole("alert")).toBeNull());
  expect(screen.getByText("The connection was lost before the text was complete. It is back: generate again.")).toBeTruthy();
});

it("a feature that cannot be added while the service is away says so", async () => {
  service();
  open(`${READY}&auto=0`);
  const field = await screen.findByRole("combobox", { name: "Add a feature" });
  isAway = true;
  fireEvent.change(field, { target: { value: "17" } });
  fireEvent.click(await screen.findByRole("option", { name: /Feature 17/ }));
  const notice = await screen.findByRole("alert");
  expect(notice.textContent).toContain("Connection lost.");
  expect(notice.textContent).toContain("Nothing was added.");
});

it("opens with a prompt where the model has no chat template, and with a conversation elsewhere", async () => {
  service({ model: { name: "base", has_chat_template: false } });
  const { unmount } = open("/steer");
  expect(await screen.findByRole("radio", { name: "Prompt", checked: true })).toBeTruthy();
  fireEvent.click(screen.getByRole("radio", { name: "Conversation" }));
  expect(await screen.findByRole("radio", { name: "Conversation", checked: true })).toBeTruthy();
  unmount();
  service({ model: { name: "other", has_chat_template: true } });
  open("/steer?seed=2");
  expect(await screen.findByRole("radio", { name: "Conversation", checked: true })).toBeTruthy();
});
