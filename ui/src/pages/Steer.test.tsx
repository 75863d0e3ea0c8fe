import { act, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter, useLocation } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { queryClient } from "../api/queries";
import { violations } from "../test/axe";
import Steer from "./Steer";

const SAE = { sae_id: "sae_a", layer: 3, site: "resid_post" };
const FEATURE = { sae_id: "sae_a", feature_idx: 90, label: "sea", layer: 3, typical_strength: 47.6 };
const CHAT = encodeURIComponent(JSON.stringify([{ role: "user", content: "Tell me a story." }]));
const READY = `/steer?chat=${CHAT}&f=[[90,52.5,1]]`;

interface Sent {
  method: string;
  path: string;
  body: Record<string, unknown>;
}
let address = "";

/** The service, as far as the page asks it. `streamed` is what a comparison answers. */
function service({ streamed = story(), attached = [SAE], live = {}, loaded = 1 as number | null } = {}) {
  const sent: Sent[] = [];
  const values: Record<string, number> = { ...live };
  vi.stubGlobal("fetch", (url: string, options: RequestInit) => {
    const path = new URL(url).pathname;
    const body = typeof options.body === "string" ? (JSON.parse(options.body) as Record<string, unknown>) : {};
    sent.push({ method: options.method ?? "GET", path, body });
    if (path === "/api/compare") return Promise.resolve(new Response(streamed));
    if (path === "/api/saes/steering" && options.method === "POST") {
      values[String(body["feature_idx"])] = Number(body["value"]);
    }
    const data: Record<string, unknown> = {
      "/api/models": {
        models: [{ id: 1, name: "steerserve-demo", quantization: "FP16" }],
        total: 1,
        loaded_model_id: loaded,
      },
      "/api/saes/attachments": { count: attached.length, entries: attached },
      "/api/saes/steering": { enabled: Object.keys(values).length > 0, values },
      "/api/health/detailed": { active_profile: null, circuits: { serving: 0 } },
      "/api/saes/sae_a/features/90": FEATURE,
      "/api/saes/sae_a/features/search": { features: [{ feature_idx: 90, label: "sea", cosine: null }], matched: 1 },
      "/api/saes/sae_a/labels": { labels: [], total: 40 },
    };
    return Promise.resolve(new Response(JSON.stringify({ success: true, data: data[path], error: null })));
  });
  return { sent, compared: () => sent.filter(({ path }) => path === "/api/compare").map(({ body }) => body) };
}

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
    text(0, "He rode to the castle."),
    text(1, "He rode to the sea."),
    ["done", {}],
  ];
  return events.map(([name, data]) => `event: ${String(name)}\ndata: ${JSON.stringify(data)}\n\n`).join("");
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

afterEach(() => sessionStorage.clear());

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
      steering: { "90": 52.5 },
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
  await waitFor(() => expect(compared()[1]?.["steering"]).toEqual({ "90": 20 }));
  await waitFor(() => expect(address).toContain("f=%5B%5B90%2C20%2C1%5D%5D"));
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
  const { compared } = service();
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
  expect(compared()).toEqual([expect.objectContaining({ steering: { "90": 52.5 }, intensities: [0, 1] })]);
  await waitFor(() => expect(new URLSearchParams(address).get("sweep")).toBe("[0,1]"));
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
