import { expect, it } from "vitest";
import { actedAt } from "./acted";

const edit = (at: [number, number][] | null) => ({
  ...{ edit: 0, source: "request", op: "add", evaluated: 9, acted: 3, first: 1, last: 8, max_change: 0.1 },
  at,
});

it("tells for each token of an answer which edits acted there", () => {
  const answer = { first: 4, texts: [" a", " b", " c", " d"] };
  const report = (...edits: ReturnType<typeof edit>[]) => ({ state: null, changed: false, edits });
  expect(actedAt(answer, report(edit([[0, 4], [6, 6]]), edit([[5, 6]])))).toEqual([[0], [1], [0, 1], []]);
  expect(actedAt(answer, report(edit(null), edit([[0, 99]])))).toEqual([[1], [1], [1], [1]]);
  expect(actedAt({ first: 4, texts: [] }, report(edit([[0, 9]])))).toEqual([]);
});
