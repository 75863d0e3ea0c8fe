import { expect, it } from "vitest";
import { advice, at, ladderOf, scaleOf, wordsIn } from "./effects";

it("measures at parts and multiples of the typical strength, within the bounds of a feature", () => {
  expect(ladderOf(40)).toEqual([10, 20, 28, 40, 56, 80, 160]);
  expect(ladderOf(47.59)).toEqual([12, 24, 33.5, 47.5, 66.5, 95, 190.5]);
  expect(ladderOf(90)).toEqual([22.5, 45, 63, 90, 126, 180, 200]);
  expect(ladderOf(500)).toEqual([125, 200]);
  expect(ladderOf(0.1)).toEqual([0.5]);
  expect(ladderOf(null)).toEqual([2.5, 5, 7, 10, 14, 20, 40]);
});

it("takes the words between commas, each once", () => {
  expect(wordsIn(" sea, boat ,, sea")).toEqual(["sea", "boat"]);
  expect(wordsIn(" ")).toEqual([]);
});

const DIAL = { value: null, low: null, high: null, smallest_that_works: null, largest_unbroken: null };
const WORDS = { calibrated: { strength: 30 }, target: { words: ["sea"] } };

it.each([
  [{ value: 20, low: 20, high: 40, smallest_that_works: 20, largest_unbroken: 40 }, /unbroken from 20\.0 to 40\.0, at the least at 20/, 20],
  [{ value: 20, low: 20, high: 20, smallest_that_works: 20, largest_unbroken: 20 }, /leaves the text unbroken, at the least at 20/, 20],
  [{ smallest_that_works: 40, largest_unbroken: 20 }, /works from 40\.0, where the text is broken.*unbroken up to 20/, 40],
  [{ largest_unbroken: 20 }, /works at no strength.*unbroken up to 20/, null],
  [{}, /smallest strength already breaks the text/, null],
])("suggests what a measurement found: %j", (found, said, strength) => {
  const told = advice({ ...WORDS, suggested: { ...DIAL, ...found } });
  expect(told.said).toMatch(said);
  expect(told.strength).toBe(strength);
});

it("suggests what is unbroken where no words were given, and of an older result what it knew", () => {
  const told = advice({ ...WORDS, target: null, suggested: { ...DIAL, largest_unbroken: 20 } });
  expect(told.said).toMatch(/unbroken up to 20.*Give words/);
  expect(told.strength).toBe(20);
  const older = advice({ ...WORDS, suggested: { value: 30, low: 0, high: 30 } });
  expect(older.said).toMatch(/earlier version.*1 nat at 30/);
  expect(older.strength).toBe(30);
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
