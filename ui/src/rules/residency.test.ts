import { expect, it } from "vitest";
import { actionOf, cut, refusedByLease, type ModelStatus } from "./residency";

const HUB = { source: "huggingface", local_path: null };
const LEASE = { model_id: 1, model_name: "a", holder: "nightly" };

it.each<[ModelStatus, string]>([
  ["downloading", "cancel"],
  ["ready", "load"],
  ["loading", "cancel"],
  ["loaded", "unload"],
  ["unloading", "wait"],
])("a model that is %s has the button %s", (status, action) => {
  expect(actionOf({ status, source: "huggingface", local_path: "/cache/a" })).toBe(action);
});

it("a failed download is resumed, and a failed load is loaded again", () => {
  expect(actionOf({ status: "error", ...HUB })).toBe("resume");
  expect(actionOf({ status: "error", ...HUB, local_path: "/cache/a" })).toBe("load");
  expect(actionOf({ status: "error", source: "local", local_path: "/models/a" })).toBe("load");
});

it("a lease refuses the unload of its model and the load of another", () => {
  expect(refusedByLease("unload", 1, LEASE)).toContain("nightly");
  expect(refusedByLease("load", 2, LEASE)).toContain("would be unloaded");
  expect(refusedByLease("cancel", 2, LEASE)).toBeNull();
  expect(refusedByLease("unload", 1, null)).toBeNull();
});

it("names what would be cut, and nothing where nothing would be", () => {
  expect(cut(1, 2, 0)).toEqual([expect.stringContaining("3 requests are in flight")]);
  expect(cut(null, null, 1)).toEqual([expect.stringContaining("1 SAE is attached. It is detached")]);
  expect(cut(0, 0, 0)).toEqual([]);
});
