import { QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, within } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { queryClient } from "../../api/queries";
import { violations } from "../../test/axe";
import { WhyToken } from "./WhyToken";

const TOKENS = ["<s>", "The", " boats", " at", " sea"];
const ANSWER = {
  position: 3,
  method: "gradient",
  target: { token_id: 9, token: " sea" },
  against: null,
  features: [
    { index: 90, position: 3, activation: 20, contribution: 2.5, label: "sea" },
    { index: 7, position: 3, activation: 9, contribution: -0.5 },
  ],
  whole: 13.1,
  explained: 0.84,
};

it("attributes the logit of a token of an answer, also beside another token", async () => {
  const sent: Record<string, unknown>[] = [];
  vi.stubGlobal("fetch", (_: string, options: RequestInit) => {
    const body = JSON.parse(String(options.body)) as Record<string, unknown>;
    sent.push(body);
    // the tokenizer puts the first token before a text by itself
    const position = String(body["text"]).startsWith("<s>") ? 4 : 3;
    const against = body["against_token"] === undefined ? null : { token_id: 5, token: body["against_token"] };
    const data = { ...ANSWER, position, against, method: body["method"] };
    return Promise.resolve(new Response(JSON.stringify({ success: true, data, error: null })));
  });
  const { container } = render(
    <QueryClientProvider client={queryClient()}>
      <WhyToken tokens={TOKENS} at={4} place={{ sae_id: "sae_a", layer: 3 }} />
    </QueryClientProvider>,
  );
  expect(sent).toEqual([]);
  fireEvent.click(screen.getByRole("button", { name: "Why this token?" }));
  const list = await screen.findByRole("list", { name: "What adds most to its logit" });
  expect(within(list).getAllByRole("listitem").map((item) => item.textContent)).toEqual([
    "sea #90+2.50",
    "no label #7−0.50",
  ]);
  expect(screen.getByText(/logit of " sea" is 13.10 above the mean. Method: gradient/)).toBeTruthy();
  expect(screen.getByText(/Explained: 0.84/)).toBeTruthy();
  expect(sent.at(-1)).toMatchObject({ text: "The boats at", position: -1, target_token: " sea", method: "gradient" });
  expect(await violations(container)).toEqual([]);

  fireEvent.change(screen.getByRole("textbox", { name: "Another token to compare with" }), { target: { value: " home" } });
  fireEvent.click(screen.getByRole("button", { name: "Compare" }));
  await screen.findByText(/above " home"/);
  fireEvent.click(screen.getByRole("radio", { name: "Direct" }));
  await screen.findByText(/Method: direct/);
  expect(sent.at(-1)).toMatchObject({ against_token: " home", method: "direct", sae_id: "sae_a", layer: 3 });
});
