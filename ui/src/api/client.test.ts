import { afterEach, expect, it, vi } from "vitest";
import { described, request } from "./client";
import { isKeyNeeded, key, keyHeader, setKey } from "./key";

function answers(body: unknown, status = 200, headers: Record<string, string> = {}) {
  const answer = () => Promise.resolve(new Response(JSON.stringify(body), { status, headers }));
  const fetched = vi.fn<typeof fetch>(answer);
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

afterEach(() => {
  sessionStorage.clear();
  document.querySelector("base")?.remove();
});

it("answers the data of an envelope, and the whole body of the compatible API", async () => {
  answers({ success: true, data: { status: "healthy" }, error: null });
  expect(await request("get", "/api/health")).toEqual({ status: "healthy" });
  answers({ object: "list", data: [] });
  expect(await request("get", "/v1/models")).toEqual({ object: "list", data: [] });
});

it("marks the questions that the page asks by itself", async () => {
  const fetched = answers({ success: true, data: {}, error: null });
  await request("get", "/api/saes", { signal: new AbortController().signal });
  await request("post", "/api/models/{model_id}/load", { path: { model_id: 1 } });
  const marks = fetched.mock.calls.map(([, sent]) => new Headers(sent?.headers).get("X-Service-Background"));
  expect(marks).toEqual(["1", null]);
});

it("throws a refusal with its code, details and the time to come back", async () => {
  const error = { code: "NOT_READY", message: "not ready", details: { ready: false } };
  answers({ success: false, data: null, error }, 503, { "Retry-After": "7" });
  await expect(request("get", "/api/health/ready")).rejects.toMatchObject({
    code: "NOT_READY",
    message: "not ready",
    details: { ready: false },
    status: 503,
    retryAfter: 7,
  });
});

it("throws a refusal that comes with the status 200", async () => {
  const error = { code: "PAYLOAD_TOO_LARGE", message: "too large", details: {} };
  answers({ success: false, data: null, error });
  await expect(request("post", "/api/clusters/{cluster_id}/activate", { path: { cluster_id: "x" } })).rejects.toMatchObject({ code: error.code });
});

it("throws the refusal of the compatible API with the name of its field", async () => {
  answers({ error: { message: "seed is too large", type: "invalid", param: "seed", code: "invalid_value" } }, 400);
  await expect(request("get", "/v1/models")).rejects.toMatchObject({
    code: "invalid_value",
    details: { param: "seed" },
  });
});

it("says that the service cannot be reached", async () => {
  vi.stubGlobal("fetch", vi.fn(() => Promise.reject(new TypeError("failed"))));
  await expect(request("get", "/api/health")).rejects.toMatchObject({ code: "CONNECTION_LOST", retryAfter: null });
});

it("finds the service behind a path prefix", () => {
  const at = document.createElement("base");
  at.href = "https://example.org/tools/steer/ui/";
  document.head.append(at);
  const sent = described("get", "/api/profiles/{profile_id}", { path: { profile_id: "a/b" } });
  expect(sent.url).toBe("https://example.org/tools/steer/api/profiles/a%2Fb");
});

it("sends the key as a header only, keeps it in this tab, and forgets it when it is refused", async () => {
  setKey("secret-key");
  const fetched = answers({ success: true, data: {}, error: null });
  await request("get", "/api/health");
  expect(fetched.mock.calls[0]?.[0]).not.toContain("secret-key");
  expect(fetched.mock.calls[0]?.[1]?.headers).toMatchObject({ Authorization: "Bearer secret-key" });
  expect(localStorage.length).toBe(0);
  answers({ success: false, data: null, error: { code: "UNAUTHORIZED", message: "a key" } }, 401);
  await expect(request("get", "/api/health")).rejects.toMatchObject({ status: 401 });
  expect([key(), keyHeader(), isKeyNeeded()]).toEqual([null, {}, true]);
});
