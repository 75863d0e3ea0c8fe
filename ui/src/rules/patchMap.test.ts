import { expect, it } from "vitest";
import { isEdits } from "./edits";
import { read } from "./link";
import {
  cellPath,
  effectOf,
  mapsOf,
  metricNumber,
  numberSaid,
  placeSaid,
  rowOf,
  scaleOf,
  strongest,
  type PatchedCell,
  type Sweep,
} from "./patchMap";
import { STEER } from "./steer";

const cell = (site: string, layer: number, at: number, value: number, head?: number): PatchedCell => ({
  ...{ site, layer, positions: [at], value, normalised: (value + 1) / 4 },
  ...(head === undefined ? {} : { head }),
});
const SWEEP: Sweep = {
  ...{ direction: "denoise", clean: 3, corrupt: -1, noise_floor: 0.01, tokens: ["The", " king", " sat"] },
  cells: [
    ...[cell("resid_post", 0, 0, -1), cell("resid_post", 0, 1, 2.6)],
    ...[cell("resid_post", 1, 0, -1.005), cell("resid_post", 1, 1, -1.4)],
    ...[cell("hook_z", 0, 0, 0, 0), cell("hook_z", 0, 1, -1, 0), cell("hook_z", 0, 0, 1, 1), cell("hook_z", 0, 1, -1, 1)],
  ],
};

it("an effect is a part of the way to the other text, in both directions", () => {
  const [, second] = SWEEP.cells;
  if (second === undefined) throw new Error("no cell");
  expect(effectOf(second, SWEEP)).toEqual({ change: 3.6, share: 0.9, isNoise: false });
  const noise = effectOf(second, { ...SWEEP, direction: "noise" });
  expect([noise.change.toFixed(1), noise.share?.toFixed(1)]).toEqual(["-0.4", "0.1"]);
  expect(effectOf({ ...second, normalised: null }, SWEEP).share).toBeNull();
});

it("a change of no more than the floor is noise, also where the floor is 0", () => {
  const isNoise = (sweep: Sweep) => sweep.cells.slice(0, 4).map((one) => effectOf(one, sweep).isNoise);
  expect(isNoise(SWEEP)).toEqual([true, false, true, false]);
  expect(isNoise({ ...SWEEP, noise_floor: 0 })).toEqual([true, false, false, false]);
});

it("the scale ends at the largest cell that is no noise, and the first open cell is that one", () => {
  expect(scaleOf(SWEEP)).toBe(0.9);
  expect(strongest(SWEEP)).toBe(SWEEP.cells[1]);
  expect(scaleOf({ ...SWEEP, noise_floor: 10 })).toBe(0);
  expect(strongest({ ...SWEEP, noise_floor: 10 })).toBe(SWEEP.cells[0]);
});

it("has a map for each site, with its last layer first, and its heads", () => {
  const [stream, heads] = mapsOf(SWEEP);
  if (stream === undefined || heads === undefined) throw new Error("no maps");
  expect([stream.site, stream.layers, stream.heads, stream.groups]).toEqual(["resid_post", [1, 0], [], [[0], [1]]]);
  expect(rowOf(stream, 0, { by: "tokens", head: -1 }).map(({ value }) => value)).toEqual([-1, 2.6]);
  expect(heads.heads).toEqual([0, 1]);
  expect(rowOf(heads, 0, { by: "tokens", head: 1 }).map(({ value }) => value)).toEqual([1, -1]);
  expect(rowOf(heads, 0, { by: "heads", group: 0 }).map(({ value }) => value)).toEqual([0, 1]);
  expect(mapsOf({ ...SWEEP, cells: [] })).toEqual([]);
});

it.each([
  [{ share: 0.9, change: 3.6 }, "90 %"],
  [{ share: -0.1, change: -0.4 }, "−10 %"],
  [{ share: -0.001, change: -0.4 }, "0 %"],
  [{ share: null, change: -0.25 }, "−0.25"],
])("%j is shown as %s", (effect, said) => {
  expect(numberSaid({ ...effect, isNoise: false })).toBe(said);
});

it.each([
  [0, "0"],
  [-1.23456, "−1.235"],
  [0.0000123, "1.2e−5"],
])("the metric %j is written %s", (value, said) => {
  expect(metricNumber(value)).toBe(said);
});

it("says where a cell is", () => {
  const at = (positions: number[]) => placeSaid({ ...cell("hook_z", 3, 0, 0, 1), positions }, SWEEP.tokens);
  expect(at([1])).toBe("hook_z of layer 3, head 1, token 1 “ king”");
  expect(at([0, 2])).toBe("hook_z of layer 3, head 1, tokens 0, 2");
  expect(at([0, 1, 2])).toBe("hook_z of layer 3, head 1, all 3 tokens");
});

it("leads to the Steer page with the text that is patched and the edit that makes the cell", () => {
  const texts = { as: "prompt", clean: "The boat sailed", corrupt: "The king sat", align: "" } as const;
  const opened = (path: string) => read(new URLSearchParams(path.split("?")[1]), STEER);
  const one = opened(cellPath(cell("hook_z", 3, 1, 0, 5), "denoise", texts));
  expect([one.as, one.prompt, one.f]).toEqual(["prompt", "The king sat", []]);
  expect(one.e).toEqual([
    {
      ...{ op: "replace", site: "hook_z", layer: 3, heads: [5], positions: { prompt_positions: [1] } },
      source: { text: "The boat sailed", positions: { prompt_positions: [1] } },
    },
  ]);
  expect(isEdits(one.e)).toBe(true);
  const other = opened(cellPath(cell("resid_post", 3, 1, 0), "noise", { ...texts, as: "chat" }));
  expect([other.as, other.chat]).toEqual(["chat", [{ role: "user", content: "The boat sailed" }]]);
  expect(other.e[0]?.source?.messages).toEqual([{ role: "user", content: "The king sat" }]);
  expect(other.e[0]).not.toHaveProperty("heads");
  const [back, forth] = (["denoise", "noise"] as const).map((way) => opened(cellPath(cell("k", 3, 1, 0), way, { ...texts, align: "0:0, 1:2, 4:1" })).e[0]);
  expect([back?.source?.positions, forth?.source?.positions]).toEqual([{ prompt_positions: [4] }, { prompt_positions: [2] }]);
});
