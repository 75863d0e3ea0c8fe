import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { refused, service, type Request } from "../test/service";
import Runs from "./Runs";

const RUN = {
  ...{ request_id: "cmpl-1", created_at: "2026-01-05T10:00:00Z", route: "/v1/completions", seed: 7, seed_chosen: true },
  body: { model: "demo", prompt: "One day the", max_tokens: 3 },
  model: {
    ...{ name: "demo", repository_id: null, revision: null, content_digest: "4f0a", quantization: "FP16" },
    ...{ dtype: "float32", engine: "checkpoint" },
  },
  saes: [{ key: "sae_1@3", sae_id: "sae_1", layer: 3, site: "resid_post" }],
  steering: {
    ...{ state: "sha256=1", sources: ["live"], values: { "sae_1@3": { "90": 60 } }, edits: null },
    ...{ preserve_norm: false, changed: false },
  },
  ...{ versions: { steerserve: "0.1.0" }, settings: { default_max_tokens: 512, continuous_batching: false } },
  machine: { device: "cpu", processor: "x86_64", probe: "7b", shares_passes: true },
  ...{ prompt_tokens: [4], choices: [{ text: " boats came home", finish_reason: "length", tokens: 3, scores: null }] },
};
const SUMMARY = {
  ...{ request_id: "cmpl-1", created_at: RUN.created_at, route: RUN.route, model: "demo", seed: 7 },
  ...{ steering_state: "sha256=1", choices: 1, prompt_tokens: 4, completion_tokens: 3 },
};

function shown(more: Record<string, unknown> = {}, { recording = true, stored = [SUMMARY] } = {}) {
  const sent = service({
    "GET /api/runs": { runs: stored, total: stored.length, stored_bytes: 2048, recording },
    "GET /api/runs/cmpl-1": RUN,
    ...more,
  });
  return { sent, user: userEvent.setup(), ...showPage(<Runs />, "/runs") };
}

it("shows the newest run whole: its texts, its steering, what it was made from", async () => {
  const { container } = shown();
  const answer = await screen.findByRole("list", { name: "Answer" });
  expect(within(answer).getByText("boats came home")).toBeTruthy();
  expect(within(screen.getByRole("list", { name: "Request" })).getByText("One day the")).toBeTruthy();
  const features = screen.getByRole("list", { name: "Features" });
  expect(within(features).getByRole("link", { name: "3:90" }).getAttribute("href")).toBe("/features/sae_1/3/90");
  expect(screen.getByText("7, chosen by the service")).toBeTruthy();
  expect(screen.queryByText("Answers are not recorded.")).toBeNull();
  expect(await violations(container)).toEqual([]);
});

it("makes a run again, and says that it is the same, or where it differs and why", async () => {
  const verdicts = [
    { request_id: "cmpl-1", equal: true, reasons: [] },
    {
      ...{ request_id: "cmpl-1", equal: false, reasons: [{ code: "version", message: "the version of torch was 1, and is 2" }] },
      first_difference: { choice: 0, part: "text", at: 7, recorded: "came home", replayed: "sank" },
    },
  ];
  const { user, container } = shown({
    "POST /api/runs/cmpl-1/replay": () =>
      verdicts.shift() ?? refused({ code: "MODEL_NOT_RESIDENT", message: "another model is loaded", status: 409 }),
  });
  const again = await screen.findByRole("button", { name: "Make it again" });
  await user.click(again);
  expect(await screen.findByText("The same answer.")).toBeTruthy();
  await user.click(again);
  expect(await screen.findByText(/Answer 1 differs in the text from character 7 on/)).toBeTruthy();
  expect(screen.getByText("sank")).toBeTruthy();
  expect(screen.getByText("the version of torch was 1, and is 2", { exact: false })).toBeTruthy();
  expect(await violations(container)).toEqual([]);
  await user.click(again);
  expect(await screen.findByText("another model is loaded")).toBeTruthy();
});

it("says how answers are recorded where they are not, and still takes the runs of others", async () => {
  const { sent, user, container } = shown(
    { "POST /api/runs/import": ({ body }: Request) => body !== undefined && { imported: 2, known: 1 } },
    { recording: false, stored: [] },
  );
  expect(await screen.findByText("RECORD_RUNS=true steerserve serve")).toBeTruthy();
  expect(screen.getByText("No answer is recorded.")).toBeTruthy();
  expect(screen.getByRole("button", { name: "Export all" })).toHaveProperty("disabled", true);
  await user.upload(screen.getByLabelText("Import runs from a file"), new File(["{}\n"], "runs.jsonl"));
  expect(await screen.findByText("2 imported, 1 were here before.")).toBeTruthy();
  expect(sent.some(({ path }) => path === "/api/runs/import")).toBe(true);
  expect(await violations(container)).toEqual([]);
});

it("deletes a run after a question", async () => {
  const { sent, user } = shown({ "DELETE /api/runs/cmpl-1": { request_id: "cmpl-1" } });
  await user.click(await screen.findByRole("button", { name: "Delete" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  await waitFor(() => expect(sent.some(({ method }) => method === "DELETE")).toBe(true));
});

it("saves all runs as a file", async () => {
  const made = vi.fn((_: Blob) => "blob:runs");
  vi.stubGlobal("URL", Object.assign(URL, { createObjectURL: made, revokeObjectURL: vi.fn() }));
  const { user } = shown({ "GET /api/runs/export": { line: 1 } });
  await user.click(await screen.findByRole("button", { name: "Export all" }));
  await waitFor(() => expect(made).toHaveBeenCalledOnce());
});

it("says the edits of a request in words, and whose the other edits are", async () => {
  const edits = [{ op: "add", vector: "calm", value: 4, layers: [3] }];
  const body = { ...RUN.body, interventions: { edits } };
  const edited = { ...RUN, body, steering: { ...RUN.steering, values: {}, edits: "k5Q=", sources: ["request"] } };
  const more = { "GET /api/vectors": { vectors: [], total: 0 } };
  const { unmount } = shown({ ...more, "GET /api/runs/cmpl-1": edited });
  const list = await screen.findByRole("list", { name: "Edits" });
  expect(list.textContent).toMatch(/calm.*layer 3/);
  unmount();
  shown({ ...more, "GET /api/runs/cmpl-1": { ...edited, body: RUN.body, steering: { ...edited.steering, sources: ["profile"] } } });
  expect(await screen.findByText("those of profile, which the record has")).toBeTruthy();
});
