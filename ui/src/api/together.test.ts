import { expect, it, vi } from "vitest";
import { together } from "./together";
import type { SideRequest } from "./plain";

it("hands on what arrives while earlier events are taken, also at the end", async () => {
  const chunk = (data: object) => `data: ${JSON.stringify({ model: "demo", choices: [], ...data })}\n\n`;
  const end = { choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage: { prompt_tokens: 3, completion_tokens: 1 } };
  const tail = chunk({ service: { logprobs: [{ token: " sea" }] } });
  const answer = `${chunk({ choices: [{ index: 0, delta: { content: " sea" }, finish_reason: null }] })}${chunk(end)}${tail}data: [DONE]\n\n`;
  vi.stubGlobal("fetch", async () => new Response(answer));
  const side = (intensity: number): SideRequest => ({
    ...{ intensity, edits: [] },
    sent: { method: "POST", url: "http://here/v1/completions", headers: {}, body: {} } as never,
  });
  const names: string[] = [];
  for await (const { name } of together([side(0), side(1)], new AbortController().signal)) {
    names.push(name);
    // whoever takes the events is slower than the answers
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  expect(names.filter((name) => name === "answer")).toHaveLength(2);
  expect(names.at(-1)).toBe("done");
});
