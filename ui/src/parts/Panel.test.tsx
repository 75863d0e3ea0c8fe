import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";
import { ApiError } from "../rules/errors";
import { violations } from "../test/axe";
import { QueryPanel } from "./Panel";

const PENDING = { data: undefined, error: null, isFetching: true, dataUpdatedAt: 0, refetch: vi.fn() };

function shown(query: object) {
  return render(
    <QueryPanel title="Models" query={{ ...PENDING, ...query } as never} isEmpty={(list: string[]) => list.length === 0} empty="No model yet.">
      {(list: string[]) => <p>{list.join(", ")}</p>}
    </QueryPanel>,
  );
}

it("says that it loads, that nothing is there, and what is there", () => {
  const { unmount } = shown({});
  expect(screen.getByRole("status").textContent).toBe("Loading");
  unmount();
  const empty = shown({ data: [] });
  expect(screen.getByText("No model yet.")).toBeTruthy();
  empty.unmount();
  shown({ data: ["a", "b"] });
  expect(screen.getByRole("region", { name: "Models" }).textContent).toContain("a, b");
});

it("shows a refusal in its place, with a way to try again", async () => {
  const refetch = vi.fn();
  const { container } = shown({ error: new ApiError("no model", "MODEL_NOT_FOUND", { id: 9 }), refetch });
  expect(screen.getByRole("alert").textContent).toContain("MODEL_NOT_FOUND");
  await userEvent.click(screen.getByRole("button", { name: "Try again" }));
  expect(refetch).toHaveBeenCalled();
  expect(await violations(container)).toEqual([]);
});

it("keeps showing the last state, and says that it is not current", () => {
  shown({ data: ["a"], error: new ApiError("cannot be reached", "CONNECTION_LOST"), dataUpdatedAt: Date.now() - 65_000 });
  expect(screen.getByText("a")).toBeTruthy();
  expect(screen.getByRole("status").textContent).toMatch(/Not current.*1 min ago/);
});
