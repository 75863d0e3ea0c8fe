import { fireEvent, render, screen } from "@testing-library/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter, Route, Routes } from "react-router";
import { expect, it, vi } from "vitest";
import { queryClient } from "./api/queries";
import { Shell } from "./Shell";
import { violations } from "./test/axe";

const MODEL = { id: 1, name: "demo", status: "loaded", dtype: "bfloat16", device: "cpu", loaded_at: null };
const LEASE = { model_name: "demo", holder: "lab", reason: "a sweep", expires_at: "2999-01-01T00:00:00Z" };
const ANSWERS: Record<string, unknown> = {
  "/api/health/detailed": { active_profile: null, circuits: { serving: 0 }, lease: LEASE },
  "/api/models": { models: [MODEL], total: 1, loaded_model_id: 1 },
  "/api/saes/attachments": { count: 1, entries: [{ sae_id: "sae_a", layer: 3 }] },
  "/api/saes/steering": { enabled: true, values: { "90": 20 } },
};

function shown(answers = ANSWERS) {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("fetch", (url: string) => {
    const data = answers[new URL(url).pathname];
    return Promise.resolve(new Response(JSON.stringify({ success: true, data, error: null })));
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
