import { expect, it } from "vitest";
import { bytes, count, DASH, decimal, mebibytes, percent, unitFor } from "./bytes";

it("writes sizes in the largest unit in which they are at least 1", () => {
  expect([0, 1023, 1024, 1536, 200 * 1024 ** 3].map((size) => bytes(size))).toEqual([
    "0 B",
    "1023 B",
    "1.0 KiB",
    "1.5 KiB",
    "200 GiB",
  ]);
});

it("keeps one unit where it is asked to, so that digits do not jump", () => {
  const unit = unitFor(3 * 1024 ** 3);
  expect(bytes(10 * 1024 ** 2, unit)).toBe("0.0 GiB");
  expect(bytes(3 * 1024 ** 3, unit)).toBe("3.0 GiB");
});

it("writes sizes of the service, which are in MiB", () => {
  expect([mebibytes(324), mebibytes(5997)]).toEqual(["324 MiB", "5.9 GiB"]);
});

it("writes a dash for everything that was not measured", () => {
  for (const missing of [null, undefined, Number.NaN, Infinity]) {
    expect([bytes(missing), mebibytes(missing), count(missing), decimal(missing), percent(missing)]).toEqual(
      Array.from({ length: 5 }, () => DASH),
    );
  }
  expect([count(0), decimal(0), percent(0), bytes(0)]).toEqual(["0", "0.00", "0 %", "0 B"]);
});
