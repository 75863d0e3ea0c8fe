import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useLocation } from "react-router";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service } from "../test/service";
import Contrast from "./Contrast";

const JOB = {
  ...{ id: "job_1", kind: "contrast", state: "done", progress: 1, message: "", error: null as object | null },
  ...{ created_at: "2026-01-05T10:00:00Z", finished_at: null },
};
const RESULT = {
  ...{ sae_id: "sae_a", layer: 3, texts: { positives: 6, negatives: 6, held_out: 2 }, compared: 227 },
  features: [
    {
      ...{ index: 90, label: "sea", auc: 1, auc_low: 0.8, auc_high: 1, auc_held_out: 0.75, promotes: [" waves", " crab"] },
      ...{ mean_positive: 53.52, mean_negative: 0, share_positive: 1, share_negative: 0, p_corrected: 0.0001 },
    },
    {
      ...{ index: 4, label: null, auc: 0.9, auc_low: null, auc_high: null, auc_held_out: null, promotes: null },
      ...{ mean_positive: 2, mean_negative: 1, share_positive: 0.5, share_negative: 0.25, p_corrected: 1 },
    },
  ],
};
let address = "";

function Address() {
  const { pathname, search } = useLocation();
  address = pathname + search;
  return null;
}

function shown(link = "/contrast", job: object = { ...JOB, result: RESULT }, attached = [{ sae_id: "sae_a", layer: 3 }]) {
  const sent = service({
    "GET /api/models": {
      models: [{ id: 1, name: "demo", quantization: "FP16", engine: "checkpoint", embedding_only: false }],
      ...{ total: 1, loaded_model_id: 1 },
    },
    "GET /api/saes/attachments": { count: attached.length, entries: attached },
    "GET /api/saes/sae_a/features/90": { typical_strength: 47.6 },
    "POST /api/features/contrast": { job: { ...JOB, state: "running", result: null } },
    "GET /api/jobs": { jobs: [JOB, { ...JOB, id: "job_2", state: "running", progress: 0.5 }, { ...JOB, id: "job_3", kind: "other" }] },
    "GET /api/jobs/job_1": "isRefused" in job ? job : { job },
    "DELETE /api/jobs/job_1": null,
  });
  const page = showPage(
    <>
      <Contrast />
      <Address />
    </>,
    link,
  );
  return { sent, ...page };
}

it("compares the two boxes, and shows the features with how sure their figures are", async () => {
  const { sent, container } = shown();
  const user = userEvent.setup();
  const box = await screen.findByRole("textbox", { name: "Texts with the concept" });
  // the example sentences are for the bundled model only
  await screen.findByText("Write at least 2 texts into each box.");
  await user.type(box, "The sea\nA ship");
  await user.type(screen.getByRole("textbox", { name: "Texts without it" }), "A cow\nBread");
  await waitFor(() => expect(screen.getByRole<HTMLButtonElement>("button", { name: "Compare" }).disabled).toBe(false));
  expect(sent.filter(({ method }) => method !== "GET")).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Compare" }));
  const rows = (await screen.findAllByRole("row")).slice(1);
  const cells = rows.map((row) => within(row).getAllByRole("cell").map((cell) => cell.textContent));
  expect(cells[0]?.slice(0, 7)).toEqual(["1.00, from 0.80 to 1.00", "0.75", "53.5", "0.0", "100 %", "0 %", "< 0.001"]);
  expect(cells[1]?.slice(0, 2)).toEqual(["0.90", "–"]);
  expect(within(rows[0] ?? document.body).getByRole("rowheader").textContent).toBe("sea 3:90promotes  waves crab");
  expect(sent.find(({ method }) => method === "POST")?.body).toMatchObject({
    ...{ positives: ["The sea", "A ship"], pool: "max", top: 20, holdout: 0.3, seed: 0, sae_id: "sae_a", layer: 3 },
  });
  expect(await violations(container)).toEqual([]);
  expect(new URLSearchParams(address.split("?")[1]).get("job")).toBe("job_1");
  await user.click(screen.getByRole("button", { name: "Steer with sea" }));
  await waitFor(() => expect(address).toContain("/steer?f="));
});

it("a link shows the result of its job and starts nothing; other comparisons can be opened", async () => {
  const { sent } = shown("/contrast?job=job_1&with=a%0Ab&without=c%0Ad");
  expect(await screen.findByRole("link", { name: "sea" })).toBeTruthy();
  expect(sent.every(({ method }) => method === "GET")).toBe(true);
  expect(screen.getByText("runs, 50 %")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Open the comparison job_2" }));
  expect(new URLSearchParams(address.split("?")[1]).get("job")).toBe("job_2");
});

it("shows how far a comparison is, and cancels it", async () => {
  const { sent } = shown("/contrast?job=job_1", { ...JOB, state: "running", progress: 0.25, message: "3 of 12 texts are read", result: null });
  expect(await screen.findByText("3 of 12 texts are read")).toBeTruthy();
  expect(screen.getByText("25 %")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Cancel" }));
  await waitFor(() => expect(sent.some(({ method }) => method === "DELETE")).toBe(true));
});

it("says why a comparison failed, and why none can begin", async () => {
  const error = { code: "context_length_exceeded", message: "positives[3] is too long", details: { param: "positives[3]" } };
  shown("/contrast?job=job_1&with=a&without=c%0Ad", { ...JOB, state: "failed", error, result: null });
  expect(await screen.findByText("positives[3] is too long")).toBeTruthy();
  expect(await screen.findByText("Write at least 2 texts into each box.")).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Compare" }).disabled).toBe(true);
});

it("without an SAE it says what is missing", async () => {
  shown("/contrast", {}, []);
  expect(await screen.findByRole("link", { name: "Attach an SAE." })).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Compare" }).disabled).toBe(true);
});

it("says that a result is no longer kept", async () => {
  shown("/contrast?job=job_1", refused({ code: "JOB_NOT_FOUND", message: "there is no job 'job_1'" }));
  expect(await screen.findByText("there is no job 'job_1'")).toBeTruthy();
});
