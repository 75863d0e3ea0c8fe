import { describe, expect, it } from "vitest";
import { diff, isWorthMarking, marked, similarity } from "./diff";

const LEFT = "Once there was a small boat, and it was red.";
const RIGHT = "Once there was a big blue whale, and it was red.";

describe("the difference of two texts", () => {
  it("gives both texts back", () => {
    const stretches = diff(LEFT, RIGHT);
    const text = (other: string) =>
      stretches.filter(({ kind }) => kind !== other).map((stretch) => stretch.text).join("");
    expect(text("right")).toBe(LEFT);
    expect(text("left")).toBe(RIGHT);
  });

  it("names the words that differ", () => {
    expect(diff("a red boat", "a blue boat")).toEqual([
      { kind: "same", text: "a " },
      { kind: "left", text: "red" },
      { kind: "right", text: "blue" },
      { kind: "same", text: " boat" },
    ]);
  });

  it("is empty for empty texts and one stretch for equal ones", () => {
    expect(diff("", "")).toEqual([]);
    expect(diff(LEFT, LEFT)).toEqual([{ kind: "same", text: LEFT }]);
  });

  it("gives up finding common words in texts that are far too long", () => {
    const long = (word: string) => Array.from({ length: 3000 }, (_, index) => `${word}${index}`).join(" ");
    expect(diff(long("a"), long("b")).map(({ kind }) => kind)).toEqual(["left", "right"]);
  });

  it("is marked across blanks and single words that are equal", () => {
    const stretches = diff("I saw the old big boat there.", "I met the new red whale there.");
    expect(marked(stretches, "left")).toEqual([
      { text: "I ", differs: false },
      { text: "saw the old big boat", differs: true },
      { text: " there.", differs: false },
    ]);
    expect(marked(stretches, "right").map(({ text }) => text).join("")).toBe("I met the new red whale there.");
  });

  it("measures how similar they are", () => {
    expect(similarity("", "")).toBe(1);
    expect(similarity("a b", "c d")).toBe(0);
    expect(similarity("a b c d", "a b x y")).toBe(0.5);
  });
});

it("marks are worth it where a part of both texts stays unmarked", () => {
  expect(isWorthMarking(diff(LEFT, RIGHT))).toBe(true);
  expect(isWorthMarking(diff(LEFT, "The king sat on a throne of gold, far from here."))).toBe(false);
  expect(isWorthMarking(diff("", ""))).toBe(true);
});
