import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../../test/axe";
import { showPage } from "../../test/page";
import { service } from "../../test/service";
import { Effect } from "./Effect";

const JOB = {
  ...{ id: "job_1", kind: "effects", state: "running", progress: 0.25, message: "30 of 120 texts", error: null },
  ...{ created_at: "2026-01-05T10:00:00Z", finished_at: null, result: null as object | null },
};

function row(strength: number, kl: number, share: number | null) {
  const damage = { nll_over_plain: kl, repetition_over_plain: 0, distinct: 0.5, is_unbroken: kl < 1 };
  return {
    ...{ damage, works: strength === 0 ? null : (share ?? 0) > 0.2 },
    ...{ strength, texts: 8, tokens: 240, kl_median: kl / 2, kl_p95: kl, nll_under_plain: 1 + kl, repetition: 0.01 },
    ...{ target_logprob: -15 + kl, control_logprob: -15, share_with_words: share, samples: [`a text at ${strength}`] },
  };
}

const SUGGESTED = { value: 20, low: 20, high: 20, smallest_that_works: 20, largest_unbroken: 20, unit_max: 12.4 };
const RESULT = {
  not_kept: null,
  suggested: SUGGESTED,
  ...{ plain: row(0, 0, 0), rows: [row(20, 0.5, 0.25), row(40, 1.5, 1)], random: [row(20, 0.1, 0), row(40, 0.4, 0)] },
  ...{ target: { words: ["sea"], control: ["farm"] }, calibrated: { kl_p95: 1, strength: 30, between: [20, 40], reason: null } },
};
const DONE = { ...JOB, state: "done", progress: 1, result: RESULT };

const CALM = { kind: "profile", id: "prof_1", name: "calm" };
const KEPT = {
  ...{ id: "eff_1", digest: "3f0c11aa22bb33", model: "demo", steering_state: null, strengths: [20, 40] },
  ...{ lever: { feature: { index: 90, sae_id: "sae_1", layer: 3 } }, created_at: "2026-01-05T10:00:00Z" },
  ...{ suggested: SUGGESTED, evidence_for: [] as object[] },
};

function shown(link: string, job: object = JOB, kept: object[] = []) {
  const sent = service({
    "POST /api/effects": { job: JOB },
    "GET /api/jobs/job_1": { job },
    "DELETE /api/jobs/job_1": null,
    "GET /api/effects": () => ({ effects: kept, total: kept.length }),
    "GET /api/effects/eff_1": () => ({ ...kept[0], result: RESULT }),
    "DELETE /api/effects/eff_1": () => kept.shift(),
    "PUT /api/effects/eff_1/evidence/prof_1": () => (kept[0] = { ...KEPT, evidence_for: [CALM] }),
    "DELETE /api/effects/eff_1/evidence/prof_1": () => (kept[0] = KEPT),
    "GET /api/profiles": { profiles: [{ id: "prof_1", name: "calm" }], total: 1 },
    "GET /api/clusters": { clusters: [], total: 0 },
    "GET /api/circuits": { circuits: [], total: 0 },
  });
  return { sent, ...showPage(<Effect place={{ sae: "sae_1", layer: 3, index: 90 }} typical={40} />, link) };
}

it("measures the feature at parts of its typical strength, with the words that are written", async () => {
  const { sent } = shown("/features/sae_1/3/90");
  const user = userEvent.setup();
  await user.type(screen.getByRole("textbox", { name: "Words to look for" }), "sea, boat");
  await user.click(screen.getByRole("button", { name: "Measure" }));
  expect(await screen.findByText("30 of 120 texts")).toBeTruthy();
  expect(sent.find(({ method }) => method === "POST")?.body).toEqual({
    ...{ feature: { index: 90, sae_id: "sae_1", layer: 3 }, strengths: [10, 20, 28, 40, 56, 80, 160], tokens: 30 },
    ...{ random_directions: 2, target: { words: ["sea", "boat"] } },
  });
  await user.click(screen.getByRole("button", { name: "Cancel" }));
  await waitFor(() => expect(sent.some(({ method }) => method === "DELETE")).toBe(true));
});

it("a link shows the curves of its job, and starts nothing", async () => {
  const { sent, container } = shown("/features/sae_1/3/90?effects=job_1&words=sea", DONE);
  const curve = await screen.findByRole("img", { name: /KL to the plain model/ });
  expect(curve.getAttribute("aria-label")).toContain("this feature: 0.00 at 0, 0.50 at 20, 1.50 at 40");
  expect(curve.getAttribute("aria-label")).toContain("random directions: 0.00 at 0, 0.10 at 20, 0.40 at 40");
  expect(screen.getByRole("img", { name: /a word begins/ }).getAttribute("aria-label")).toContain("words to compare");
  expect(screen.getByText(/It works and leaves the text unbroken, at the least at 20.0/)).toBeTruthy();
  expect(screen.getByText(/At 20.0 25 % of the texts have the words, without steering 0 %/)).toBeTruthy();
  expect(screen.getByText(/largest activation of this feature that was seen is 12.4/)).toBeTruthy();
  const link = screen.getByRole("link", { name: "Steer at 20.0" });
  expect(decodeURIComponent(link.getAttribute("href") ?? "")).toContain("[[90,20,1,");
  const rows = within(screen.getByRole("group", { name: "Figures of each strength" })).getAllByRole("row");
  const last = rows.map((one) => within(one).queryAllByRole("cell").slice(-3).map((cell) => cell.textContent));
  expect(last).toEqual([[], ["0 %", "", "yes"], ["25 %", "yes", "yes"], ["100 %", "yes", "no"]]);
  expect(screen.getByText("a text at 40")).toBeTruthy();
  expect(sent.every(({ method }) => method === "GET")).toBe(true);
  expect(await violations(container)).toEqual([]);
});

it("says without words how far the text is unbroken, and why a measurement failed", async () => {
  const suggested = { ...SUGGESTED, value: null, low: null, high: null, smallest_that_works: null };
  const { unmount } = shown("/?effects=job_1", { ...DONE, result: { ...RESULT, suggested, target: null, random: [] } });
  expect(await screen.findByText(/unbroken up to 20.0. Give words/)).toBeTruthy();
  expect(screen.getByRole("link", { name: "Steer at 20.0" })).toBeTruthy();
  expect(screen.queryByRole("img", { name: /a word begins/ })).toBeNull();
  unmount();
  const error = { code: "SAE_NOT_ATTACHED", message: "the SAE was detached while its job ran", details: {} };
  shown("/?effects=job_1", { ...JOB, state: "failed", error });
  expect(await screen.findByText("the SAE was detached while its job ran")).toBeTruthy();
});

it("opens a kept measurement, makes it evidence for a document and takes that back, and deletes it", async () => {
  const other = { ...KEPT, id: "eff_2", lever: { vector: "calm" } };
  const { sent, container } = shown("/features/sae_1/3/90", JOB, [KEPT, other]);
  const user = userEvent.setup();
  const own = await screen.findByRole("list", { name: "Kept measurements of this feature" });
  expect(within(own).getAllByRole("listitem")).toHaveLength(1);
  expect(own.textContent).toContain("feature 3:90 of sae_1 · demo · 2 strengths · works at 20.0");
  expect(screen.getByText("1 of another lever")).toBeTruthy();
  await user.click(screen.getByRole("button", { name: "Open the measurement eff_1" }));
  expect(await screen.findByRole("img", { name: /KL to the plain model/ })).toBeTruthy();
  await screen.findByRole("option", { name: "calm" });
  await user.selectOptions(screen.getByRole("combobox", { name: "Make it evidence for" }), "calm");
  await user.click(await screen.findByRole("button", { name: "Remove the evidence for calm" }));
  expect(await screen.findByText(/Evidence changes no rung/)).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Delete the measurement eff_1" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByText("None of this feature.")).toBeTruthy();
  await waitFor(() => expect(screen.queryByRole("img", { name: /KL to the plain model/ })).toBeNull());
  const changed = sent.filter(({ method }) => method !== "GET").map(({ method, path }) => `${method} ${path}`);
  expect(changed).toEqual([
    "PUT /api/effects/eff_1/evidence/prof_1",
    "DELETE /api/effects/eff_1/evidence/prof_1",
    "DELETE /api/effects/eff_1",
  ]);
});
