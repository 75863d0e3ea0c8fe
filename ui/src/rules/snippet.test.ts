import { expect, it } from "vitest";
import { curl, python } from "./snippet";

const SENT = {
  method: "POST",
  url: "http://127.0.0.1:8000/api/saes/steering",
  headers: { "Content-Type": "application/json", Authorization: "Bearer secret", "X-Service-Lease": "lease_secret" },
  body: { label: "it's", value: 2.5, on: true, none: null },
};

it("writes a curl command that a shell reads as it was meant", () => {
  expect(curl(SENT)).toBe(
    [
      "curl -s 'http://127.0.0.1:8000/api/saes/steering' \\",
      "  -H 'Content-Type: application/json' \\",
      `  -d '{"label":"it'\\''s","value":2.5,"on":true,"none":null}'`,
    ].join("\n"),
  );
});

it("writes a Python program with the values of Python", () => {
  const program = python(SENT);
  expect(program).toContain('httpx.post(\n    "http://127.0.0.1:8000/api/saes/steering"');
  expect(program).toContain(`json={"label": "it's", "value": 2.5, "on": True, "none": None}`);
});

it("leaves keys and leases out", () => {
  expect(curl(SENT) + python(SENT)).not.toMatch(/secret/);
});

it("names the method where it is not implied", () => {
  const removal = { method: "DELETE", url: "http://h/x", headers: {} };
  expect(curl(removal)).toBe("curl -s -X DELETE 'http://h/x'");
  expect(python(removal)).toContain("httpx.delete(");
  expect(python({ ...removal, body: {} })).toContain('httpx.request(\n    "DELETE",\n    "http://h/x"');
  expect(curl({ ...removal, method: "GET" })).toBe("curl -s 'http://h/x'");
});
