import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it } from "vitest";
import { violations } from "../test/axe";
import { showPage } from "../test/page";
import { service, type Request } from "../test/service";
import Probes from "./Probes";

const TRUTH = {
  ...{ id: "probe_1", name: "truth", content_digest: "3f0c11aa22bb33", model_hint: "llama", width: 128 },
  layers: [{ layer: 3, site: "resid_post", norm: 1.5, bias: -0.2 }],
  ...{ layer_convention: "resid_post", layer_offset: 0, warnings: ["the bias was 0"], created_at: "2026-01-05T10:00:00Z" },
  source: { kind: "trained", format: null, file: null, local_path: null, repository_id: null, revision: null },
  training: {
    ...{ method: "logistic", read: "last", site: "resid_post", positives: 20, negatives: 18, held_out: 11, best_layer: 3 },
    layers: [
      { layer: 3, auc_held_out: 0.97, auc_low: 0.9, auc_high: 1, separation: 3, norm: 1.5, auc_shuffled: 0.52, auc_random: null },
    ],
    neighbours: [{ sae_id: "sae_1", index: 90, cosine: 0.4 }],
  },
};

function shown() {
  const all: object[] = [TRUTH];
  const sent = service({
    "GET /api/probes": () => ({ probes: [...all], total: all.length }),
    "POST /api/probes": ({ body }: Request) => ({ ...TRUTH, name: (body as { name: string }).name }),
    "DELETE /api/probes/probe_1": () => all.shift() && { probe_id: "probe_1" },
  });
  return { sent, user: userEvent.setup(), ...showPage(<Probes />, "/probes") };
}

it("shows how well a probe tells held-out texts, and the features near to it", async () => {
  const { container } = shown();
  const figures = await screen.findByRole("group", { name: "Figures of each layer" });
  const cells = within(figures).getAllByRole("cell").map(({ textContent }) => textContent);
  expect(cells).toEqual(["0.97", "0.90 to 1.00", "0.52", "–"]);
  expect(screen.getByRole("link", { name: "feature 90" }).getAttribute("href")).toBe("/features/sae_1/-/90");
  expect(screen.getByText("the bias was 0")).toBeTruthy();
  expect(screen.getByText(/AUC 0.97 at layer 3/)).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("imports the file of another tool with what it does not say, and deletes a probe after a question", async () => {
  const { sent, user } = shown();
  const choose = await screen.findByLabelText("Import a probe from files");
  await user.click(screen.getByText("What the file does not say"));
  expect(screen.queryByRole("combobox", { name: "Use" })).toBeNull();
  const beside = new File(["{}"], "probe_config.json");
  await user.upload(screen.getByLabelText("The JSON beside the weights"), beside);
  await user.upload(choose, new File(["x"], "probe_head.bin"));
  expect(await screen.findByText("imported", { exact: false })).toBeTruthy();
  const posted = sent.find(({ method }) => method === "POST")?.body;
  expect(posted).toEqual({ name: "probe_head", file: expect.any(File), metadata: expect.any(File) });
  await user.click(screen.getByRole("button", { name: "Delete" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
  expect(await screen.findByText(/No probe is stored yet/)).toBeTruthy();
});
