import { act, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useQuery } from "@tanstack/react-query";
import { afterEach, expect, it, vi } from "vitest";
import { setKey } from "./api/key";
import { models } from "./api/queries";
import { KeyDialog } from "./KeyDialog";
import { violations } from "./test/axe";
import { showPage } from "./test/page";

afterEach(() => {
  setKey("");
  sessionStorage.clear();
});

/** The service, which takes one key. Answers the keys that were sent. */
function guarded(taken: string) {
  const sent: unknown[] = [];
  vi.stubGlobal("fetch", async (_: string, { headers }: { headers: Record<string, string> }) => {
    sent.push(headers["Authorization"] ?? null);
    if (headers["Authorization"] === `Bearer ${taken}`) return new Response('{"success": true, "data": {"models": []}}');
    const error = { code: "UNAUTHORIZED", message: "a key is needed", details: {} };
    return new Response(JSON.stringify({ success: false, data: null, error }), { status: 401 });
  });
  return sent;
}

function Page() {
  const { data } = useQuery(models);
  return <p>{data === undefined ? "no answer" : "answered"}</p>;
}

it("asks for the key that the service needs, asks again for a wrong one, and keeps it in this tab only", async () => {
  const sent = guarded("right");
  const { container } = showPage(
    <>
      <Page />
      <KeyDialog />
    </>,
  );
  const field = await screen.findByLabelText<HTMLInputElement>("Key");
  expect(field.type).toBe("password");
  expect(await violations(container)).toEqual([]);
  await userEvent.type(field, "wrong{Enter}");
  await waitFor(() => expect(sent).toContain("Bearer wrong"));
  await userEvent.type(await screen.findByLabelText("Key"), "right{Enter}");
  expect(await screen.findByText("answered")).toBeTruthy();
  expect(screen.queryByRole("dialog")).toBeNull();
  expect(Object.values({ ...sessionStorage })).toEqual(["right"]);
  expect(JSON.stringify({ ...localStorage })).not.toContain("right");
});

it("can be put away, and stays at hand", async () => {
  guarded("right");
  showPage(
    <>
      <Page />
      <KeyDialog />
    </>,
  );
  await screen.findByLabelText("Key");
  // a browser closes a dialog with Esc
  act(() => screen.getByRole<HTMLDialogElement>("dialog").close());
  await userEvent.click(screen.getByRole("button", { name: "Enter the key of the service" }));
  expect(screen.getByRole("dialog", { name: "This service needs a key" })).toBeTruthy();
});
