import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useLocation } from "react-router";
import { expect, it } from "vitest";
import { read } from "../rules/link";
import { STEER } from "../rules/steer";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service } from "../test/service";
import Patch from "./Patch";

const JOB = {
  ...{ id: "job_1", kind: "patches", state: "done", progress: 1, message: "", error: null as object | null },
  ...{ created_at: "2026-01-05T10:00:00Z", finished_at: null },
};
const values = [
  [-1, 2.6],
  [-1.005, -1.4],
];
const CELLS = values.flatMap((row, layer) =>
  row.map((value, at) => ({ site: "resid_post", layer, positions: [at], value, normalised: (value + 1) / 4 })),
);
const RESULT = {
  ...{ model: "demo", system_fingerprint: "fp", direction: "denoise", metric: "logit_difference" },
  ...{ clean: 3, corrupt: -1, noise_floor: 0.01, tokens: ["The", " king"], cells: CELLS as object[] },
};
const SITES = [
  { site: "resid_post", heads: null, can_write: true },
  { site: "hook_z", heads: 4, can_write: true },
  { site: "mlp_out", heads: null, can_write: true },
  { site: "pattern", heads: 4, can_write: false },
];
const TEXTS = "clean=The+boat&corrupt=The+king&target=+sea&against=+cow";
let address = "";

function Address() {
  const { pathname, search } = useLocation();
  address = pathname + search;
  return null;
}

function shown(link = "/patch", job: object = { ...JOB, result: RESULT }, name = "demo") {
  const sent = service({
    "GET /api/models": {
      models: [{ id: 1, name, quantization: "FP16", engine: "checkpoint", embedding_only: false }],
      ...{ total: 1, loaded_model_id: 1 },
    },
    "GET /api/models/1/sites": { model_id: 1, sites: SITES },
    "POST /api/patches": { job: { ...JOB, state: "running", result: null } },
    "GET /api/jobs": { jobs: [JOB, { ...JOB, id: "job_2" }, { ...JOB, id: "job_3", kind: "contrast" }] },
    "GET /api/jobs/job_1": { job },
    "GET /api/jobs/job_2": { job: { ...JOB, id: "job_2", result: RESULT } },
    "DELETE /api/jobs/job_1": null,
  });
  const page = showPage(
    <>
      <Patch />
      <Address />
    </>,
    link,
  );
  return { sent, ...page };
}
const query = () => new URLSearchParams(address.split("?")[1]);
const map = () => screen.findByRole("grid", { name: "Patches of resid_post by layer and token" });

it("sends the two texts, the places and the metric, and keeps them in the link", async () => {
  const { sent, container } = shown();
  const user = userEvent.setup();
  expect(await screen.findByText("Write both texts.")).toBeTruthy();
  await user.type(screen.getByRole("textbox", { name: "Clean text" }), "The boat");
  await user.type(screen.getByRole("textbox", { name: /^Corrupt text/ }), "The king");
  await user.type(screen.getByRole("textbox", { name: "Token of the clean text" }), " sea");
  await user.type(screen.getByRole("textbox", { name: "Less that of" }), " cow");
  await user.click(screen.getByRole("checkbox", { name: "mlp_out" }));
  expect(screen.queryByRole("checkbox", { name: "pattern" })).toBeNull();
  await user.type(screen.getByRole("textbox", { name: "Pairs of tokens" }), "0:0, 1:1");
  const heads = screen.getByRole<HTMLInputElement>("checkbox", { name: /^Each head alone/ });
  expect(heads.disabled).toBe(true);
  await user.click(screen.getByRole("radio", { name: "some" }));
  await user.type(screen.getByRole("textbox", { name: "Which tokens" }), "1; 0");
  expect(await violations(container)).toEqual([]);
  const button = screen.getByRole<HTMLButtonElement>("button", { name: "Patch" });
  await waitFor(() => expect(button.disabled).toBe(false));
  expect(sent.every(({ method }) => method === "GET")).toBe(true);
  await user.click(button);
  await map();
  expect(sent.find(({ method }) => method === "POST")?.body).toEqual({
    ...{ clean: "The boat", corrupt: "The king", align: [[0, 0], [1, 1]], sites: ["mlp_out", "resid_post"], layers: "all", positions: [[1], [0]] },
    ...{ direction: "denoise", metric: { kind: "logit_difference", target_token: " sea", against_token: " cow" } },
    noise_repeats: 4,
  });
  expect([query().get("job"), query().get("clean"), query().get("sites")]).toEqual(["job_1", "The boat", "mlp_out,resid_post"]);
}, 20_000);

it("for the bundled model two texts are ready, so that one press begins", async () => {
  const { sent } = shown("/patch", { ...JOB, result: RESULT }, "steerserve-demo");
  const button = await screen.findByRole<HTMLButtonElement>("button", { name: "Patch" });
  await waitFor(() => expect(button.disabled).toBe(false));
  await userEvent.click(button);
  await map();
  expect(sent.find(({ method }) => method === "POST")?.body).toMatchObject({ clean: "The sailor walked to the" });
  expect(query().get("target")).toBe(" waves");
});

it("shows what each patch does, what is no more than noise, and opens the strongest", async () => {
  const { container } = shown(`/patch?job=job_1&${TEXTS}`);
  const rows = within(await map()).getAllByRole("row").slice(1);
  const cells = rows.map((row) => within(row).getAllByRole("gridcell").map((cell) => cell.textContent));
  expect(rows.map((row) => within(row).getByRole("rowheader").textContent)).toEqual(["layer 1", "layer 0"]);
  expect(cells).toEqual([["·", "−10 %"], ["·", "90 %"]]);
  expect(screen.getByText(/The metric is the logit of “ sea” less that of “ cow”/)).toBeTruthy();
  expect(within(screen.getByRole("list", { name: "Legend" })).getAllByRole("listitem")).toHaveLength(3);
  expect(screen.getByText("Noise floor").parentElement?.textContent).toContain("0.010");
  expect(screen.getByRole("gridcell", { name: "resid_post of layer 1, token 0 “The”: no more than the noise floor" })).toBeTruthy();
  const open = within(screen.getByRole("group", { name: "The open patch of resid_post" }));
  expect(open.getByText("Replace resid_post of layer 0 by that of “The boat”, at position 1.")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  await userEvent.click(open.getByRole("link", { name: "Make this edit in Steer" }));
  expect(address.startsWith("/steer?")).toBe(true);
  const state = read(query(), STEER);
  expect([state.prompt, state.e]).toEqual([
    "The king",
    [
      {
        ...{ op: "replace", site: "resid_post", layer: 0, positions: { prompt_positions: [1] } },
        source: { text: "The boat", positions: { prompt_positions: [1] } },
      },
    ],
  ]);
});

it("the cells are reached with keys, one of them with Tab, and Enter leads to Steer", async () => {
  shown(`/patch?job=job_1&${TEXTS}`);
  const user = userEvent.setup();
  const grid = within(await map());
  const stops = () => grid.getAllByRole("gridcell").filter((cell) => cell.tabIndex === 0);
  expect(stops().map(({ textContent }) => textContent)).toEqual(["90 %"]);
  stops()[0]?.focus();
  await user.keyboard("{ArrowUp}");
  expect(document.activeElement?.textContent).toBe("−10 %");
  expect(stops().map(({ textContent }) => textContent)).toEqual(["−10 %"]);
  expect(screen.getByRole("heading", { name: "resid_post of layer 1, token 1 “ king”" })).toBeTruthy();
  await user.keyboard("{Home}{ArrowLeft}");
  expect(screen.getByText(/^The change is no more than the noise floor/)).toBeTruthy();
  await user.keyboard("{Enter}");
  expect(read(query(), STEER).e[0]).toMatchObject({ layer: 1, positions: { prompt_positions: [0] } });
});

it("of heads that are patched alone it shows one over the tokens, or all of them", async () => {
  const cells = [0, 1].flatMap((head) => CELLS.map((cell) => ({ ...cell, site: "hook_z", head, value: cell.value / (2 - head) })));
  const { container } = shown(`/patch?job=job_1&${TEXTS}&sites=hook_z&heads=1`, { ...JOB, result: { ...RESULT, cells } });
  const user = userEvent.setup();
  const head = await screen.findByRole<HTMLSelectElement>("combobox", { name: "Head of hook_z" });
  expect(head.value).toBe("0");
  await user.selectOptions(head, "1");
  expect(screen.getByRole("gridcell", { name: "hook_z of layer 0, head 1, token 1 “ king”: 90 %" })).toBeTruthy();
  await user.click(screen.getByRole("radio", { name: "heads" }));
  expect(screen.getByRole("columnheader", { name: "head 1" })).toBeTruthy();
  await user.selectOptions(screen.getByRole("combobox", { name: "Tokens of hook_z" }), "1");
  expect(screen.getAllByRole("gridcell").map((cell) => cell.textContent)).toHaveLength(4);
  expect(await violations(container)).toEqual([]);
});

it("another sweep is shown without a way to Steer, because its texts are not known", async () => {
  const { sent } = shown(`/patch?job=job_1&${TEXTS}`);
  await map();
  await userEvent.click(screen.getByRole("button", { name: "Open the sweep job_2" }));
  expect(await screen.findByText("The texts of this sweep are not in the link, so its edit cannot be made here.")).toBeTruthy();
  expect([query().get("job"), query().get("clean")]).toEqual(["job_2", null]);
  expect(screen.queryByRole("link", { name: "Make this edit in Steer" })).toBeNull();
  expect(sent.every(({ method }) => method === "GET")).toBe(true);
});

it("shows the change itself where the texts are not apart", async () => {
  const same = { ...RESULT, clean: -1, cells: CELLS.map((cell) => ({ ...cell, normalised: null })) };
  shown(`/patch?job=job_1&${TEXTS}`, { ...JOB, result: same });
  expect(within(await map()).getAllByRole("gridcell").map((cell) => cell.textContent)).toEqual(["·", "−0.40", "·", "3.60"]);
  expect(screen.getByText(/differs by no more than the noise/)).toBeTruthy();
});

it("follows a sweep, cancels it, and says why one failed", async () => {
  const { sent, unmount } = shown("/patch?job=job_1", { ...JOB, state: "running", progress: 0.25, message: "3 of 12 cells are computed", result: null });
  expect(await screen.findByText("3 of 12 cells are computed")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Cancel" }));
  await waitFor(() => expect(sent.some(({ method }) => method === "DELETE")).toBe(true));
  unmount();
  const error = { code: "SAE_INCOMPATIBLE", message: "sites[0]: layer 3 has no such site", details: {} };
  shown("/patch?job=job_1", { ...JOB, state: "failed", error, result: null });
  expect(await screen.findByText("sites[0]: layer 3 has no such site")).toBeTruthy();
});
