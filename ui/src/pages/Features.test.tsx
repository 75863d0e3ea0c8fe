import { act, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter, Route, Routes } from "react-router";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { service } from "../test/service";
import Features from "./Features";

const FEATURE = {
  sae_id: "sae_1",
  feature_idx: 90,
  label: null as string | null,
  decoder_norm: 1,
  encoder_norm: 1.21,
  encoder_bias: -4.17,
  threshold: null,
  layer: 3 as number | null,
  residual_norm: 95.19 as number | null,
  typical_strength: 47.59 as number | null,
  statistics: null,
  promotes: [{ token_id: 1316, token: " waves", value: 0.7345 }] as object[] | null,
  suppresses: [{ token_id: 1122, token: " throne", value: -0.54 }] as object[] | null,
  corpora: [] as object[],
};
const EXAMPLE = { text_index: 3, position: 8, value: 61.2, is_strongest: true, at: 1 };
const CORPUS = {
  corpus_id: "corpus_1",
  name: "sea stories",
  tokens: 2000,
  density: 0.01,
  max: 61.2,
  quantiles: { "0.5": 30.1, "0.99": 60.4 },
  histogram: { edges: [0, 30.6, 61.2], counts: [12, 8] },
  examples: [
    { ...EXAMPLE, tokens: [{ text: "The", value: 0 }, { text: " boat\n", value: 61.2 }] },
    { ...EXAMPLE, text_index: 4, value: 30.1, is_strongest: false, tokens: [{ text: "a", value: 0 }, { text: " ship", value: 30.1 }] },
  ],
};
const LABELS = [
  { feature_idx: 90, label: "sea" },
  { feature_idx: 332, label: "sea: ship" },
];
const NEAREST = { features: [{ feature_idx: 332, label: "sea: ship", cosine: 0.5 }] };
const JOB = { id: "job_1", kind: "promoted_tokens", state: "running", progress: 0.25, message: "", error: null, result: null };

/** The same answer for every index, each with its own. */
function every(feature: typeof FEATURE) {
  const indices = Array.from({ length: 1024 }, (_, index) => index);
  return Object.fromEntries(indices.map((index) => [`GET /api/saes/sae_1/features/${index}`, { ...feature, feature_idx: index }]));
}

function shown(link: string, feature = FEATURE, search: unknown = NEAREST, has_corpus = false) {
  let label = feature.label;
  const second = { id: "job_2", state: "running", message: "256 of 1024 features are computed" };
  const sent = service({
    "GET /api/saes": { saes: [{ id: "sae_1", name: "layer_3", d_sae: 1024 }], total: 1, attachment: {} },
    "GET /api/saes/attachments": { entries: feature.layer === null ? [] : [{ sae_id: "sae_1", layer: 3, has_corpus }] },
    "GET /api/monitoring": { enabled: false, sae_attached: true, sae_id: "sae_1", layer: 3, monitored_features: [] },
    "GET /api/monitoring/contexts": { sae_id: "sae_1", feature_idx: 90, size: 0, kept: 0, contexts: [] },
    "GET /api/effects": { effects: [], total: 0 },
    "GET /api/monitoring/history": { records: [], total: 0 },
    "POST /api/monitoring/statistics/top": { features: [], metric: "mean", k: 20, tokens: 0, since: null },
    "GET /api/saes/sae_1/labels": ({ query }: { query: URLSearchParams }) => {
      const labels = LABELS.filter((one) => one.label.includes(query.get("query") ?? ""));
      return { labels, matched: labels.length, total: 2, limit: 50, offset: 0 };
    },
    "POST /api/saes/sae_1/labels": ({ body }: { body: Record<string, string> }) => {
      // the service takes the blanks at the ends away
      label = body["90"]?.trim() ?? null;
      return { imported: 1, total: 1, warnings: [] };
    },
    "GET /api/saes/sae_1/features/90": () => ({ ...feature, label }),
    ...(has_corpus ? every(feature) : {}),
    "POST /api/saes/sae_1/features/search": search,
    "GET /api/jobs/job_1": { job: { ...JOB, state: "done" } },
    "GET /api/jobs/job_2": () => ({ job: { ...JOB, ...second } }),
    "DELETE /api/jobs/job_2": () => {
      second.state = "cancelled";
    },
  });
  const drawn = render(
    <QueryClientProvider client={new QueryClient()}>
      <MemoryRouter initialEntries={[link]}>
        <Routes>
          <Route path="/features/*" element={<Features />} />
        </Routes>
      </MemoryRouter>
    </QueryClientProvider>,
  );
  return { sent, ...drawn };
}

it("finds features by the words of their labels, and goes to one by its index", async () => {
  const { container } = shown("/features?q=ship");
  expect(await screen.findByRole("link", { name: "sea: ship" })).toBeTruthy();
  expect(screen.queryByRole("link", { name: "sea" })).toBeNull();
  expect(await violations(container)).toEqual([]);
  const field = screen.getByRole("searchbox");
  fireEvent.change(field, { target: { value: "9999" } });
  expect(screen.getByText("The last index of this SAE is 1,023.")).toBeTruthy();
  fireEvent.change(field, { target: { value: "90" } });
  fireEvent.submit(screen.getByRole("search"));
  expect(await screen.findByRole("heading", { name: /No label/ })).toBeTruthy();
});

it("opens with features that have an example where a corpus was read, and shows others", async () => {
  const { container, sent } = shown("/features", { ...FEATURE, label: "sea", corpora: [CORPUS] }, NEAREST, true);
  const some = await screen.findByRole("list", { name: "Some features, and where each is strongest" });
  expect(within(some).getAllByRole("listitem")).toHaveLength(8);
  expect(some.textContent).toContain("fires at 1.00 % of tokensThe boat⏎");
  expect(sent.some(({ path }) => path.endsWith("/labels"))).toBe(false);
  expect(await violations(container)).toEqual([]);
  const indices = () => sent.filter(({ path }) => /features\/\d+$/.test(path)).map(({ path }) => path);
  const before = indices();
  fireEvent.click(screen.getByRole("button", { name: "Show others" }));
  await waitFor(() => expect(new Set(indices()).size).toBeGreaterThan(before.length));
  fireEvent.change(screen.getByRole("searchbox"), { target: { value: "ship" } });
  expect(await screen.findByRole("link", { name: "sea: ship" })).toBeTruthy();
});

it("saves a label, and shows what the service has then", async () => {
  const { sent, container } = shown("/features/sae_1/3/90");
  fireEvent.click(await screen.findByRole("button", { name: "Give it a label" }));
  fireEvent.change(screen.getByRole("textbox", { name: "Label of 3:90" }), { target: { value: "  sea " } });
  await act(async () => fireEvent.click(screen.getByRole("button", { name: "Save" })));
  expect(await screen.findByRole("heading", { name: "sea 3:90" })).toBeTruthy();
  expect(sent.find(({ method, path }) => method === "POST" && path.endsWith("/labels"))?.body).toEqual({ "90": "sea" });
  expect(await violations(container)).toEqual([]);
});

it("shows what was not measured as a dash, and offers no steering with an SAE that is not attached", async () => {
  shown("/features/sae_1/-/90", { ...FEATURE, layer: null, residual_norm: null, typical_strength: null });
  expect((await screen.findByText("typical strength")).parentElement?.textContent).toBe("typical strength–");
  expect(screen.queryByRole("link", { name: "Steer with this" })).toBeNull();
});

it("shows the tokens that a feature promotes and suppresses, and says when they are not known", async () => {
  const { container, unmount } = shown("/features/sae_1/3/90");
  const promoted = await screen.findByRole("list", { name: "Promotes" });
  expect(promoted.textContent).toBe(" waves0.73");
  expect(screen.getByRole("list", { name: "Suppresses" }).textContent).toBe(" throne−0.54");
  expect(await violations(container)).toEqual([]);
  unmount();
  shown("/features/sae_1/-/90", { ...FEATURE, promotes: null, suppresses: null });
  expect(await screen.findByText(/Known only while the SAE is attached/)).toBeTruthy();
});

it("finds the features that promote a word, once the job of the first search is done", async () => {
  const answers = [{ job: JOB }, { features: [{ feature_idx: 90, label: "sea", value: 0.67 }], matched: 1 }];
  const { sent, container } = shown("/features?q=sea&in=promotes", FEATURE, () => answers.shift());
  await screen.findByText(/The first search in an SAE/);
  expect(sent.filter(({ path }) => path.endsWith("/search"))).toEqual([]);
  fireEvent.submit(screen.getByRole("search"));
  const found = await screen.findByRole("list", { name: "Features that promote sea" });
  expect(found.textContent).toBe("sea0.67");
  expect(sent.find(({ path }) => path.endsWith("/search"))?.body).toMatchObject({ query: "sea", by: "promotes" });
  expect(await violations(container)).toEqual([]);
});

it("finds the features that are strongest at a word, each with its text", async () => {
  const example = {
    ...{ text_index: 0, position: 2, value: 40, is_strongest: true, at: 1 },
    tokens: [
      { text: "The", value: 0 },
      { text: " sea", value: 40 },
    ],
  };
  const answers = [
    { features: [{ feature_idx: 90, label: null, value: 30, share: 0.75, example }], matched: 1 },
    { features: [], matched: 0 },
  ];
  const { sent, container } = shown("/features?q=sea&in=examples", FEATURE, () => answers.shift());
  fireEvent.submit(await screen.findByRole("search"));
  const found = await screen.findByRole("list", { name: "Features that are strongest at sea" });
  expect(found.textContent).toContain("75 %");
  expect(found.textContent).toContain("The sea");
  expect(sent.find(({ path }) => path.endsWith("/search"))?.body).toMatchObject({ query: "sea", by: "examples", examples: true });
  expect(await violations(container)).toEqual([]);
});

it("offers the other searches where one finds nothing", async () => {
  const { sent } = shown("/features?q=sea&in=text", FEATURE, { features: [], matched: 0 });
  fireEvent.submit(await screen.findByRole("search"));
  fireEvent.click(await screen.findByRole("button", { name: "Look where features are strongest" }));
  fireEvent.submit(await screen.findByRole("search"));
  await screen.findByText(/No example of the newest corpus/);
  const asked = sent.filter(({ path }) => path.endsWith("/search")).map(({ body }) => body);
  expect(asked).toMatchObject([
    { text: "sea", by: "text" },
    { query: "sea", by: "examples" },
  ]);
});

it("shows how far the job of a search is, and cancels it", async () => {
  const { sent } = shown("/features?q=sea&in=promotes", FEATURE, { job: { ...JOB, id: "job_2" } });
  await screen.findByRole("search");
  fireEvent.submit(screen.getByRole("search"));
  expect(await screen.findByText("256 of 1024 features are computed")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Cancel" }));
  expect(await screen.findByText(/was cancelled/)).toBeTruthy();
  expect(sent.some(({ method, path }) => method === "DELETE" && path === "/api/jobs/job_2")).toBe(true);
});

it("links to the Steer page with the feature at its typical strength", async () => {
  shown("/features/sae_1/3/90");
  const link = await screen.findByRole<HTMLAnchorElement>("link", { name: "Steer with this" });
  const query = new URL(link.href).searchParams;
  expect(JSON.parse(query.get("f") ?? "")).toEqual([[90, 47.5, 1, "sae_1@3"]]);
  expect(query.get("sae")).toBe("sae_1@3");
});

it("shows how often and where a feature fires in a corpus", async () => {
  const { container, unmount } = shown("/features/sae_1/3/90", { ...FEATURE, corpora: [{ ...CORPUS, corpus_id: "corpus_0", tokens: 5, name: "small" }, CORPUS] });
  const strongest = await screen.findByRole("list", { name: "Strongest examples" });
  expect(strongest.textContent).toBe("61.20The boat⏎");
  expect(strongest.querySelector("mark[data-at]")?.textContent).toBe(" boat⏎");
  expect(screen.getByRole("list", { name: "Examples from strong to weak" }).textContent).toBe("30.10a ship");
  expect(screen.getByText("density").parentElement?.textContent).toContain("1");
  expect(screen.getByRole("img", { name: "Activations of the feature in sea stories, from 0 to 61.2" })).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  const silent = { ...CORPUS, max: null, histogram: null, examples: [] };
  unmount();
  shown("/features/sae_1/3/90", { ...FEATURE, corpora: [silent] });
  expect(await screen.findByText("The feature never fires in the 2,000 tokens of sea stories.")).toBeTruthy();
});
