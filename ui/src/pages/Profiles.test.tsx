import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service, type Request } from "../test/service";
import Profiles from "./Profiles";

const PROFILE = {
  id: "prof_1",
  name: "calm",
  description: null,
  model_id: "1",
  sae_id: "sae_a",
  layer: 3,
  steering: { "90": 10, "7": -4 },
  intensity: 1,
  source_kind: "manual",
  warnings: [],
  is_active: true,
  created_at: "2026-01-05T10:00:00Z",
  updated_at: "2026-01-05T10:00:00Z",
};

function answers(live: Record<string, number>) {
  const profile = { ...PROFILE };
  const table = {
    "GET /api/profiles": () => ({ profiles: [profile], total: 1, active_profile_id: "prof_1" }),
    "GET /api/profiles/prof_1": () => ({ ...profile }),
    "GET /api/circuits/claims": [],
    "GET /api/health/detailed": { active_profile: null },
    "GET /api/saes/attachments": { count: 1, entries: [{ sae_id: "sae_a", layer: 3 }] },
    "GET /api/saes/steering": () => ({ enabled: true, values: live }),
    "GET /api/saes/sae_a/labels": { labels: [{ feature_idx: 90, label: "sea" }] },
    "PATCH /api/profiles/prof_1": ({ body }: Request) => Object.assign(profile, body),
    "POST /api/profiles/prof_1/activate": () => ({ warnings: [] }),
    "GET /api/effects": { effects: [], total: 0 },
  };
  return table;
}

const changes = (sent: Request[]) => sent.filter(({ method }) => method !== "GET").map(({ method, path }) => `${method} ${path}`);

it("dials the active profile: the intensity is saved and steers at once", async () => {
  const sent = service(answers({ "90": 10, "7": -4 }));
  const { container } = showPage(<Profiles />);
  const user = userEvent.setup();
  expect(await screen.findByText("The live values are those of calm at λ 1.00.", { exact: false })).toBeTruthy();
  expect((await screen.findAllByRole("rowheader", { name: "sea 3:90" })).length).toBe(1);
  await user.click(screen.getByRole("button", { name: "Most 2.00" }));
  expect(await screen.findByText(/2 features differ/)).toBeTruthy();
  expect(changes(sent)).toEqual(["PATCH /api/profiles/prof_1", "POST /api/profiles/prof_1/activate"]);
  expect(await violations(container)).toEqual([]);
});

it("does not replace values that were changed by hand, and says what differs", async () => {
  const sent = service(answers({ "90": 12, "7": -4 }));
  showPage(<Profiles />);
  const user = userEvent.setup();
  expect(await screen.findByText(/changed since the activation/)).toBeTruthy();
  const row = screen.getByRole("rowheader", { name: /#90/ }).closest("tr") ?? document.body;
  expect(within(row).getAllByRole("cell").map((cell) => cell.textContent)).toEqual(["+10", "+12"]);
  await user.click(screen.getByRole("button", { name: "Off 0.00" }));
  const last = (wanted: string) => sent.findLastIndex(({ method, path }) => `${method} ${path}` === wanted);
  // the list is read anew when all that the dial does is done
  await waitFor(() => {
    const saved = last("PATCH /api/profiles/prof_1");
    expect(saved).toBeGreaterThan(-1);
    expect(last("GET /api/profiles")).toBeGreaterThan(saved);
  });
  expect(changes(sent)).toEqual(["PATCH /api/profiles/prof_1"]);
});

it("shows the kept measurements that are evidence for a profile, and that it is being activated", async () => {
  const one = {
    ...{ id: "effect_1", digest: "sha256:0", model: "demo", lever: { feature: { sae_id: "sae_a", layer: 3, index: 90 } } },
    ...{ strengths: [10, 20], suggested: { low: 10, high: 20, smallest_that_works: 10 }, created_at: "2026-01-05T10:00:00Z", evidence_for: [] },
  };
  let finish = () => {};
  const sent = service({
    ...answers({}),
    "GET /api/profiles": { profiles: [{ ...PROFILE, is_active: false }], total: 1, active_profile_id: null },
    "GET /api/effects": { effects: [one], total: 1 },
    "POST /api/profiles/prof_1/activate": () => new Promise((resolve) => (finish = () => resolve({ warnings: [] }))),
  });
  const { container } = showPage(<Profiles />);
  const list = await screen.findByRole("list", { name: "Measurements that are evidence" });
  expect(within(list).getByText("feature 3:90 of sae_a · demo · 2 strengths · works from 10.0 to 20.0")).toBeTruthy();
  const asked = sent.find(({ path }) => path === "/api/effects");
  expect(asked?.query.get("evidence_for")).toBe("prof_1");
  expect(await violations(container)).toEqual([]);
  await userEvent.click(screen.getByRole("button", { name: "Activate" }));
  expect((await screen.findByRole<HTMLButtonElement>("button", { name: "Activating" })).disabled).toBe(true);
  finish();
  expect(await screen.findByRole("button", { name: "Activate" })).toBeTruthy();
});
