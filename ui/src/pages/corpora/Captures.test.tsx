import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, it, vi } from "vitest";
import { setKey } from "../../api/key";
import { violations } from "../../test/axe";
import { showPage } from "../../test/page";
import { service } from "../../test/service";
import { Captures } from "./Captures";

const CAPTURE = {
  ...{ id: "cap_1", name: "sea", state: "done", model: "demo", dtype: "float32", texts: 2, tokens: 14, rows: 14 },
  sites: [
    ...[1, 3].map((layer) => ({ tensor: `resid_post.${layer}`, site: "resid_post", layer, heads: null, width: 128 })),
    { tensor: "hook_z.2", site: "hook_z", layer: 2, heads: [0, 4], width: 32 },
  ],
  ...{ stored_bytes: 20_480, job_id: null as string | null, created_at: "2026-01-05T10:00:00Z" },
};
const JOB = {
  ...{ id: "job_1", kind: "capture", state: "running", progress: 0.5, message: "7 of at most 14 tokens are read" },
  ...{ error: null, created_at: "2026-01-05T10:00:00Z", finished_at: null, result: null },
};

function shown(all: object[] = [CAPTURE]) {
  const left = [...all];
  const sent = service({
    "GET /api/captures": () => ({ captures: [...left], stored_bytes: 20_480, limit_mb: 64 }),
    "GET /api/captures/cap_1": {
      ...CAPTURE,
      files: [
        { name: "capture.json", bytes: 900 },
        { name: "shard-00000.safetensors", bytes: 19_456 },
      ],
    },
    "DELETE /api/captures/cap_1": () => left.shift() && { capture_id: "cap_1" },
    "GET /api/jobs/job_1": { job: JOB },
  });
  return { sent, user: userEvent.setup(), ...showPage(<Captures />) };
}

afterEach(() => sessionStorage.clear());

it("lists captures with their sites and sizes, and their files as links", async () => {
  const { sent, user, container } = shown();
  const row = within(await screen.findByRole("listitem"));
  expect(row.getByText("resid_post of layers 1, 3; hook_z of layer 2")).toBeTruthy();
  expect(row.getByText("20.0 KiB")).toBeTruthy();
  expect(screen.getByText(/20.0 KiB of at most 64.0 MiB are stored/)).toBeTruthy();
  expect(sent.map(({ path }) => path)).toEqual(["/api/captures"]);
  await user.click(row.getByText("Files of sea"));
  const file = await row.findByRole("link", { name: "shard-00000.safetensors" });
  expect(file.getAttribute("href")).toMatch(/\/api\/captures\/cap_1\/files\/shard-00000\.safetensors$/);
  expect(file.getAttribute("download")).toBe("shard-00000.safetensors");
  expect(row.getByText("19.0 KiB")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("a file is read with the key where there is one", async () => {
  vi.stubGlobal("URL", Object.assign(URL, { createObjectURL: () => "blob:1", revokeObjectURL: () => undefined }));
  setKey("secret");
  const { sent, user } = shown();
  await user.click(await screen.findByText("Files of sea"));
  await user.click(await screen.findByRole("link", { name: "capture.json" }));
  await waitFor(() => expect(sent.at(-1)?.path).toBe("/api/captures/cap_1/files/capture.json"));
});

it("deletes a capture after a question", async () => {
  const { sent, user } = shown();
  await user.click(await screen.findByRole("button", { name: "Delete the capture sea" }));
  expect(sent.every(({ method }) => method === "GET")).toBe(true);
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByText("No capture was made yet. A request makes one.")).toBeTruthy();
  expect(sent.find(({ method }) => method === "DELETE")?.path).toBe("/api/captures/cap_1");
});

it("shows how far a capture is, and how one that was cut goes on", async () => {
  shown([
    { ...CAPTURE, state: "reading", job_id: "job_1" },
    { ...CAPTURE, id: "cap_2", name: "land", state: "stopped" },
  ]);
  expect(await screen.findByText("7 of at most 14 tokens are read")).toBeTruthy();
  expect(screen.getByText("The reading was cut after 14 rows. To carry it on, send the same request again.")).toBeTruthy();
});
