import { act, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter, Route, Routes } from "react-router";
import { expect, it, vi } from "vitest";
import { queryClient } from "./api/queries";
import { notifyError } from "./parts/Notices";
import { request } from "./api/client";
import { Shell } from "./Shell";
import { violations } from "./test/axe";

const MODEL = { id: 1, name: "demo", status: "loaded", dtype: "bfloat16", device: "cpu", loaded_at: null, locked: true };
const LEASE = { model_name: "demo", holder: "lab", reason: "a sweep", expires_at: "2999-01-01T00:00:00Z" };
const HEALTH = { active_profile: null, circuits: { serving: 0 }, lease: LEASE };
const ANSWERS: Record<string, unknown> = {
  "/api/health/detailed": HEALTH,
  "/api/models": { models: [MODEL], total: 1, loaded_model_id: 1 },
  "/api/saes/attachments": { count: 1, entries: [{ sae_id: "sae_a", layer: 3 }] },
  "/api/saes/steering": { enabled: true, values: { "90": 20 } },
};

function shown(answers: Record<string, unknown> | (() => Record<string, unknown>) = ANSWERS) {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("fetch", async (url: string) => {
    const data = (typeof answers === "function" ? answers() : answers)[new URL(url).pathname];
    return new Response(JSON.stringify({ success: true, data, error: null }));
  });
  return render(
    <QueryClientProvider client={queryClient()}>
      <MemoryRouter>
        <Routes>
          <Route element={<Shell />}>
            <Route index element={<h1>A page</h1>} />
          </Route>
        </Routes>
      </MemoryRouter>
    </QueryClientProvider>,
  );
}

it("says on every page what is loaded, attached and steering, and who holds the lease", async () => {
  const { container } = shown();
  expect(await screen.findByText("demo", { selector: "dd b" })).toBeTruthy();
  expect(await screen.findByText("layer 3")).toBeTruthy();
  expect(await screen.findByText("1 feature")).toBeTruthy();
  expect((await screen.findByRole("complementary", { name: "Lease" })).textContent).toContain("lab");
  expect(screen.getByRole("link", { name: "Health" })).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("groups the pages by what a person wants", () => {
  shown();
  const menu = screen.getByRole("navigation", { name: "Pages" });
  const groups = ["Steer", "Find", "Documents", "Host"].map((name) => within(menu).getByRole("list", { name }));
  const pages = groups.map((group) => within(group).getAllByRole("link").map((link) => link.getAttribute("href")));
  expect(pages[0]?.[0]).toBe("/steer");
  expect(pages[2]).toEqual(["/profiles", "/clusters", "/circuits", "/runs"]);
  expect(pages.flat()).toHaveLength(17);
});

it("warns on every page that other machines need no key", async () => {
  const access = { name: "access", status: "degraded", message: "every machine may use it", latency_ms: null };
  shown({ ...ANSWERS, "/api/health/detailed": { ...HEALTH, components: [access] } });
  expect(await screen.findByText(/Without a login: every machine may use it/)).toBeTruthy();
});

it("says that nothing steers while no SAE is attached, whatever was answered before", async () => {
  shown({ ...ANSWERS, "/api/saes/attachments": { count: 0, entries: [] } });
  expect(await screen.findByText("off")).toBeTruthy();
  expect(await screen.findByText("none")).toBeTruthy();
});

it("lists its keys when ? is pressed", async () => {
  shown();
  fireEvent.keyDown(document.body, { key: "?" });
  expect(await screen.findByRole("dialog", { name: "Keys" })).toBeTruthy();
  expect(screen.getByText("Go to Health")).toBeTruthy();
});

it("says that the connection is lost, tries again, and after a restart says what is gone", async () => {
  let isAway = false;
  let answers: Record<string, unknown> = { ...ANSWERS, "/api/health/detailed": { ...HEALTH, uptime_seconds: 5_000 } };
  const { container } = shown(() => {
    if (isAway) throw new TypeError("network error");
    return answers;
  });
  expect(await screen.findByText("1 feature")).toBeTruthy();
  isAway = true;
  await act(() => request("post", "/api/saes/steering/enable").catch(notifyError));
  expect(await screen.findByText(/The page tries again/)).toBeTruthy();
  expect((await screen.findByRole("region", { name: "Notices" })).textContent).toContain("Connection lost.");
  expect(await violations(container)).toEqual([]);
  answers = {
    "/api/health/detailed": { ...HEALTH, lease: null, uptime_seconds: 1 },
    "/api/models": { models: [{ ...MODEL, status: "ready" }], total: 1, loaded_model_id: null },
    "/api/saes/attachments": { count: 0, entries: [] },
  };
  isAway = false;
  const restarted = await screen.findByRole("complementary", { name: "Restart" });
  await waitFor(() =>
    expect(restarted.textContent).toContain(
      "Gone: the model demo, the SAE sae_a at layer 3, 1 live value, the lock of the model, the lease of lab.",
    ),
  );
  expect(screen.queryByText(/The page tries again/)).toBeNull();
  expect(screen.getByRole("region", { name: "Notices" }).textContent).toBe("");
  expect(await violations(container)).toEqual([]);
  fireEvent.click(screen.getByRole("button", { name: "Close this notice" }));
  expect(screen.queryByRole("complementary", { name: "Restart" })).toBeNull();
});
