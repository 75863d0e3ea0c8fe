import { expect, it } from "vitest";
import { continued } from "./log";

const ANSWER = { last_id: 2, dropped: 0, kept: 3 };

it("appends what came, keeps as many lines as the service does, and marks what was missed", () => {
  const before = continued(undefined, { ...ANSWER, lines: [{ id: 1 }, { id: 2 }] });
  expect(before).toEqual({ lines: [{ id: 1 }, { id: 2 }], last_id: 2 });
  const after = continued(before, { ...ANSWER, lines: [{ id: 9 }, { id: 10 }], last_id: 10, dropped: 6 });
  expect(after).toEqual({ lines: [{ id: 2 }, { id: 9, missed: 6 }, { id: 10 }], last_id: 10 });
});

it("is the same value where no line came", () => {
  const before = continued(undefined, { ...ANSWER, lines: [{ id: 1 }, { id: 2 }] });
  expect(continued(before, { ...ANSWER, lines: [] })).toBe(before);
  expect(continued(before, { ...ANSWER, lines: [], last_id: 5 })).toEqual({ ...before, last_id: 5 });
});
