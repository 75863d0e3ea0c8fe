import { screen, within } from "@testing-library/react";
import { expect, it } from "vitest";
import { violations } from "../../test/axe";
import { showPage } from "../../test/page";
import { CardList } from "./CardList";

const CARD = {
  smi_index: 0, uuid: "GPU-1", name: "H200", total_mb: 8192, used_mb: 2048, free_mb: 6144, torch_index: 0, torch_measured: false,
  millm_allocated_mb: null, millm_reserved_mb: null, processes: [], processes_reason: null, engine_memory: null,
};
const NODE = {
  node: "east", address: "10.0.0.11", reason: null, version: "0.1.0", python: "3.11.9", torch: "2.13.0", cpu: "a processor",
  cores: 16, cards: [CARD], host: { total_mb: 4096, available_mb: 1024 },
};
const SILENT = {
  node: "west", address: "10.0.0.12", reason: "no answer within 20 s", version: null, python: null, torch: null, cpu: null,
  cores: null, cards: [], host: null,
};
const REPORT = {
  read_at: "2026-01-01T00:00:00Z", reason: "no card", cards: [], host: { total_mb: 8000, available_mb: 4000 }, nodes: [], nodes_reason: null,
};

it("shows each node of the cluster with its cards and its memory, and why one is silent", async () => {
  const { container } = showPage(<CardList report={{ ...REPORT, nodes: [NODE, SILENT] }} />);
  const east = await screen.findByRole("article", { name: "Node east" });
  expect(within(east).getByRole("article", { name: "H200" })).toBeTruthy();
  expect(east.textContent).toContain("a processor, 16 cores");
  expect(screen.getByRole("article", { name: "Node west" }).textContent).toContain("no answer within 20 s");
  expect(await violations(container)).toEqual([]);
});

it("says why the nodes are not known, and nothing of nodes where there are none", () => {
  const { unmount } = showPage(<CardList report={{ ...REPORT, nodes_reason: "the cluster cannot be reached" }} />);
  expect(screen.getByText("the cluster cannot be reached")).toBeTruthy();
  unmount();
  showPage(<CardList report={REPORT} />);
  expect(screen.queryByText(/cluster/)).toBeNull();
  expect(screen.queryByRole("article", { name: /^Node/ })).toBeNull();
});
