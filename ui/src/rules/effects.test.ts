import { expect, it } from "vitest";
import { at, bringing, ladderOf, scaleOf, wordsIn } from "./effects";

it("measures at parts and multiples of the typical strength, within the bounds of a feature", () => {
  expect(ladderOf(40)).toEqual([10, 20, 40, 80, 160]);
  expect(ladderOf(47.59)).toEqual([12, 24, 47.5, 95, 190.5]);
  expect(ladderOf(90)).toEqual([22.5, 45, 90, 180, 200]);
  expect(ladderOf(500)).toEqual([125, 200]);
  expect(ladderOf(0.1)).toEqual([0.5]);
  expect(ladderOf(null)).toEqual([2.5, 5, 10, 20, 40]);
});

it("takes the words between commas, each once", () => {
  expect(wordsIn(" sea, boat ,, sea")).toEqual(["sea", "boat"]);
  expect(wordsIn(" ")).toEqual([]);
});

it("finds the smallest strength that brings the words into half of the texts", () => {
  const rows = [[80, 1], [40, 0.5], [20, 0.4]].map(([strength, share_with_words]) => ({ strength: strength ?? 0, share_with_words: share_with_words ?? null }));
  expect(bringing(rows)?.strength).toBe(40);
  expect(bringing([{ strength: 20, share_with_words: null }])).toBeUndefined();
});

it("places points between the least and the most of all lines", () => {
  const lines = [
    { name: "a", points: [[0, 1], [10, 3]] as const },
    { name: "b", points: [[20, null]] as const },
  ];
  const scale = scaleOf(lines, 5);
  expect(scale).toEqual({ x: [0, 20], y: [1, 5] });
  expect(at(scale, 10, 3)).toEqual([0.5, 0.5]);
  expect(at(scale, 0, 5)).toEqual([0, 0]);
  expect(scaleOf([], null)).toEqual({ x: [0, 1], y: [0, 1] });
  expect(scaleOf([{ name: "a", points: [[2, 4]] }], null)).toEqual({ x: [2, 3], y: [4, 5] });
});
