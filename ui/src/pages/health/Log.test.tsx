import { act, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";
import { violations } from "../../test/axe";
import { showPage } from "../../test/page";
import { service } from "../../test/service";
import { Log } from "./Log";

const LINE = { at: "2026-01-01T10:00:00.123Z", level: "ERROR", logger: "steerserve.openai", event: "stream_failed", fields: { rows: 2 } };
const RAISED = { type: "ValueError", places: ["openai/render.py:231 in stream"] };

it("shows level, event, fields and the places of an exception, and can be paused", async () => {
  service({ "GET /api/health/log": { lines: [{ ...LINE, id: 7, exception: RAISED }], last_id: 7, dropped: 0, kept: 500 } });
  const { container } = showPage(<Log />);
  const line = (await screen.findByText("stream_failed")).closest("li");
  expect(line?.textContent).toMatch(/\.123 error stream_failed rows=2/);
  expect(screen.getByText("ValueError")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Pause" }));
  expect(screen.getByText(/Paused/)).toBeTruthy();
  expect(await violations(container)).toEqual([]);
});

it("draws only the lines that came, also where the oldest ones leave", async () => {
  let last_id = 2;
  service({
    "GET /api/health/log": ({ query }: { query: URLSearchParams }) => {
      const after = Number(query.get("after") ?? 0);
      const ids = Array.from({ length: last_id - after }, (_, place) => after + place + 1);
      return { lines: ids.map((id) => ({ ...LINE, id, event: `event_${id}`, exception: null })), last_id, dropped: 0, kept: 2 };
    },
  });
  const { client } = showPage(<Log />);
  await screen.findByText("event_2");
  // every drawn line writes its time
  const formats: { readonly format: unknown } = Intl.DateTimeFormat.prototype;
  const drawn = vi.spyOn(formats, "format", "get");
  await act(() => client.refetchQueries());
  expect(drawn).not.toHaveBeenCalled();
  last_id = 3;
  await act(() => client.refetchQueries());
  await screen.findByText("event_3");
  expect(screen.queryByText("event_1")).toBeNull();
  expect(drawn).toHaveBeenCalledTimes(1);
  drawn.mockRestore();
});
