import { useState } from "react";
import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { violations } from "../test/axe";
import { Combo } from "./Combo";

const ALL = ["sea", "seagull", "castle"];

function Search({ onChoose }: { onChoose: (id: string) => void }) {
  const [query, setQuery] = useState("");
  const options = ALL.filter((word) => query !== "" && word.startsWith(query)).map((id) => ({ id, label: id }));
  return (
    <Combo
      label="Add a feature"
      placeholder="A word"
      query={query}
      onQuery={setQuery}
      options={options}
      onChoose={onChoose}
      status={query !== "" && options.length === 0 ? "No label has these words." : null}
    />
  );
}

it("offers what fits, and takes the one that the arrow keys reach", async () => {
  const onChoose = vi.fn();
  const { container } = render(<Search onChoose={onChoose} />);
  const field = screen.getByRole("combobox", { name: "Add a feature" });
  fireEvent.focus(field);
  fireEvent.change(field, { target: { value: "sea" } });
  expect(screen.getAllByRole("option").map((option) => option.textContent)).toEqual(["sea", "seagull"]);
  expect(await violations(container)).toEqual([]);
  fireEvent.keyDown(field, { key: "ArrowDown" });
  fireEvent.keyDown(field, { key: "Enter" });
  expect(onChoose).toHaveBeenCalledWith("seagull");
  expect(screen.queryByRole("option")).toBeNull();
});

it("says that nothing fits, and closes with Escape", () => {
  render(<Search onChoose={vi.fn()} />);
  const field = screen.getByRole("combobox", { name: "Add a feature" });
  fireEvent.change(field, { target: { value: "x" } });
  expect(screen.getByText("No label has these words.")).toBeTruthy();
  fireEvent.keyDown(field, { key: "Escape" });
  expect(field.getAttribute("aria-expanded")).toBe("false");
});
