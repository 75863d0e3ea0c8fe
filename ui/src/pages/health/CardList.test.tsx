import { screen, within } from "@testing-library/react";
import { expect, it } from "vitest";
import { violations } from "../../test/axe";
import { showPage } from "../../test/page";
import type { MemoryPart } from "../../rules/memoryParts";
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
  model_memory: null,
};

it("shows each node of the cluster with its cards and its memory, and why one is silent", async () => {
  const { container } = showPage(<CardList report={{ ...REPORT, nodes: [NODE, SILENT] }} />);
  const east = await screen.findByRole("article", { name: "Node east" });
  expect(within(east).getByRole("article", { name: "H200" })).toBeTruthy();
  expect(east.textContent).toContain("a processor, 16 cores");
  expect(screen.getByRole("article", { name: "Node west" }).textContent).toContain("no answer within 20 s");
  expect(await violations(container)).toEqual([]);
});

const PART: MemoryPart = { replica: null, device: "cpu", weights_mb: 1200, cache_mb: 64, saes_mb: 36, process_mb: 1700 };
const UNTOLD: MemoryPart = { ...PART, replica: "replica-2", weights_mb: null, cache_mb: null, saes_mb: 0, process_mb: 812 };

/** The list of the parts, shown, and its lines without the explanations. */
function shownMemory(...parts: MemoryPart[]) {
  const page = showPage(<CardList report={{ ...REPORT, model_memory: { model_id: 1, parts } }} />);
  const list = screen.getByRole("list", { name: "Memory of the loaded model" });
  const plain = list.cloneNode(true) as HTMLElement;
  for (const explanation of plain.querySelectorAll("[role=tooltip]")) explanation.remove();
  return { ...page, list, lines: [...plain.children].map(({ textContent }) => textContent) };
}

it("the parts of the memory of the loaded model add up to what its process holds, and each word is explained", async () => {
  const { container, list, lines } = shownMemory(PART, { ...PART, replica: "replica-2", device: "cuda:0" });
  const sum = "weights 1,200 MiB + KV cache 64 MiB + SAEs 36 MiB + other 400 MiB = process 1,700 MiB";
  expect(lines).toEqual([`host memory: ${sum}`, `cuda:0 of replica-2: ${sum}`]);
  for (const word of ["weights", "KV cache", "SAEs", "other", "process"]) {
    for (const term of within(list).getAllByText(word)) {
      expect(term.tabIndex).toBe(0);
      expect(document.getElementById(term.getAttribute("aria-describedby") ?? "")?.textContent).toMatch(/\.$/);
    }
  }
  expect(await violations(container)).toEqual([]);
});

it("parts that are not in memory are taken off, and a part that nobody told is not made up", () => {
  const { lines } = shownMemory({ ...PART, process_mb: 1000 }, UNTOLD, { ...UNTOLD, replica: "replica-1", process_mb: null });
  expect(lines).toEqual([
    "host memory: weights 1,200 MiB + KV cache 64 MiB + SAEs 36 MiB − not in memory now 300 MiB = process 1,000 MiB",
    "host memory of replica-2: process 812 MiB, of which the engine tells no parts",
    "host memory of replica-1: not measured",
  ]);
});

it("says why the nodes are not known, and nothing of nodes where there are none", () => {
  const { unmount } = showPage(<CardList report={{ ...REPORT, nodes_reason: "the cluster cannot be reached" }} />);
  expect(screen.getByText("the cluster cannot be reached")).toBeTruthy();
  unmount();
  showPage(<CardList report={REPORT} />);
  expect(screen.queryByText(/cluster/)).toBeNull();
  expect(screen.queryByRole("article", { name: /^Node/ })).toBeNull();
});
