import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service, type Request } from "../test/service";
import Corpora from "./Corpora";

const SOURCE = { kind: "inline", local_path: null, repo_id: null, revision: null, file_path: null, text_field: "text" };
const DONE = {
  ...{ id: "corpus_1", name: "stories", state: "done", source: SOURCE, model: "demo", texts: 3, tokens: 60, counted: 57 },
  saes: [{ sae_id: "sae_1", layer: 3, site: "resid_post", features: 1023 as number | null }],
  ...{ max_tokens: 1000, context: 128, examples: 20, stored_bytes: 2048, job_id: null as string | null },
  ...{ created_at: "2026-01-05T10:00:00Z", finished_at: "2026-01-05T10:01:00Z" as string | null },
};
const READING = { ...DONE, id: "corpus_2", name: "sea", state: "reading", job_id: "job_1", finished_at: null };
const JOB = {
  ...{ id: "job_1", kind: "corpus", state: "running", progress: 0.5, message: "500 of at most 1000 tokens are read" },
  ...{ error: null as object | null, created_at: "2026-01-05T10:00:00Z", finished_at: null, result: null },
};
const ENTRY = { sae_id: "sae_1", layer: 3 };

function shown(link = "/corpora", { job = JOB, attached = [ENTRY] as object[] } = {}) {
  const all: object[] = [DONE];
  const sent = service({
    "GET /api/corpora": () => ({ corpora: [...all], stored_bytes: 2048, limit_mb: 8 }),
    "GET /api/captures": { captures: [], stored_bytes: 0, limit_mb: 8 },
    "POST /api/corpora": () => {
      all.push(READING);
      return { job };
    },
    "DELETE /api/corpora/corpus_1": () => all.shift() && { corpus_id: "corpus_1" },
    "GET /api/jobs/job_1": { job },
    "DELETE /api/jobs/job_1": null,
    "GET /api/models": { models: [{ id: 1, name: "demo" }], total: 1, loaded_model_id: 1 },
    "GET /api/saes/attachments": { entries: attached },
    "GET /api/saes": { saes: [{ id: "sae_1", name: "layer three" }], total: 1 },
  });
  return { sent, user: userEvent.setup(), ...showPage(<Corpora />, link) };
}
const bodies = (sent: readonly Request[]) =>
  sent.filter(({ method, path }) => method === "POST" && path === "/api/corpora").map(({ body }) => body);

it("reads texts that are written, shows how far it is, and cancels", async () => {
  const { sent, user, container } = shown();
  expect(await screen.findByText(/covers what is attached now: layer three at layer 3/)).toBeTruthy();
  const go = screen.getByRole("button", { name: "Read them" });
  expect(go).toHaveProperty("disabled", true);
  await user.type(screen.getByLabelText("Name"), "sea");
  await user.type(screen.getByRole("textbox", { name: "Texts" }), "a boat\n\na whale");
  expect(screen.getByText("2 texts")).toBeTruthy();
  await user.click(go);
  expect(await screen.findByText("500 of at most 1000 tokens are read")).toBeTruthy();
  expect(bodies(sent)).toEqual([
    {
      ...{ name: "sea", source: "inline", texts: ["a boat", "a whale"] },
      ...{ max_tokens: 1_000_000, context: 128, examples: 20 },
    },
  ]);
  expect(await violations(container)).toEqual([]);
  await user.click(screen.getByRole("button", { name: "Cancel" }));
  await waitFor(() => expect(sent.some(({ method, path }) => method === "DELETE" && path === "/api/jobs/job_1")).toBe(true));
});

it("takes a file in the place of what is written, and names the line that is wrong", async () => {
  const { sent, user } = shown();
  await user.type(await screen.findByLabelText("Name"), "chats");
  const choose = screen.getByLabelText("Texts from a file");
  await user.upload(choose, new File(['{"text": "a"}\nno'], "bad.jsonl"));
  expect(await screen.findByText("bad.jsonl: Line 2 is not JSON.")).toBeTruthy();
  await user.upload(choose, new File([new Uint8Array([0xff, 0xfe])], "bad.txt"));
  expect(await screen.findByText("bad.txt: It is not UTF-8.")).toBeTruthy();
  const chat = [{ role: "user", content: "Hi" }];
  await user.upload(choose, new File([JSON.stringify({ text: chat })], "good.jsonl"));
  expect(await screen.findByText("good.jsonl")).toBeTruthy();
  expect(screen.queryByText(/UTF-8/)).toBeNull();
  await user.click(screen.getByRole("button", { name: "Read them" }));
  await waitFor(() => expect(bodies(sent)).toMatchObject([{ texts: [chat] }]));
});

it("names a file of the machine of the service", async () => {
  const { sent, user } = shown();
  await user.type(await screen.findByLabelText("Name"), "big");
  await user.click(screen.getByRole("radio", { name: "Local file" }));
  await user.type(screen.getByLabelText("File on the machine of the service"), "/data/a.jsonl");
  await user.clear(screen.getByLabelText("Field of JSON Lines"));
  await user.type(screen.getByLabelText("Field of JSON Lines"), "story");
  await user.click(screen.getByRole("button", { name: "Read them" }));
  await waitFor(() =>
    expect(bodies(sent)).toMatchObject([{ source: "local", local_path: "/data/a.jsonl", text_field: "story" }]),
  );
});

it("lists what each corpus covers, and deletes one after a question", async () => {
  const { sent, user } = shown();
  const covered = await screen.findByRole("list", { name: "SAEs of stories" });
  expect(within(covered).getByRole("link", { name: "layer three" }).getAttribute("href")).toBe("/features?sae=sae_1");
  expect(within(covered).getByText("1,023 features fire")).toBeTruthy();
  await user.click(screen.getByRole("button", { name: "Delete stories" }));
  expect(sent.some(({ method }) => method === "DELETE")).toBe(false);
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByText(/No corpus was read yet/)).toBeTruthy();
});

it("says why a reading has no result, and that an SAE must be attached", async () => {
  const error = { code: "CORPORA_FULL", message: "corpora take at most 8 MiB", details: {} };
  const { container } = shown("/corpora?job=job_1", { job: { ...JOB, state: "failed", error }, attached: [] });
  expect(await screen.findByText("corpora take at most 8 MiB")).toBeTruthy();
  expect(await screen.findByRole("link", { name: "Attach an SAE." })).toBeTruthy();
  expect(screen.getByText("Attach an SAE first.")).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});
