import { fireEvent, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";
import { ApiError } from "../rules/errors";
import { violations } from "../test/axe";
import { DropFiles } from "./DropFiles";

const file = (name: string, text: string) => new File([text], name, { type: "application/json" });

it("shows beside each file what became of it, and opens what was imported", async () => {
  const opened = vi.fn();
  const send = async (sent: File) => {
    if ((await sent.text()) === "bad") throw new ApiError("the kind is 'x'", "UNKNOWN_KIND", { kind: "x" }, 200);
    return [
      { id: "prof_1", name: "sea words (2)", warnings: ["the name was taken"], error: null },
      { id: null, name: "second", warnings: [], error: "a document is not" },
    ];
  };
  const { container } = render(<DropFiles what="a cluster" send={send} onOpen={opened} />);
  const user = userEvent.setup();
  await user.upload(screen.getByLabelText("Import a cluster from files"), [file("good.json", "good"), file("bad.json", "bad")]);
  const entry = async (name: string) => within((await screen.findByText(name)).closest("li") ?? document.body);
  const bad = await entry("bad.json");
  expect((await bad.findByRole("alert")).textContent).toContain("the kind is 'x'");
  expect(bad.getByText("UNKNOWN_KIND")).toBeTruthy();
  const good = await entry("good.json");
  expect(good.getByText("the name was taken")).toBeTruthy();
  expect(good.getByText(/second: a document is not/)).toBeTruthy();
  expect(opened.mock.calls).toEqual([["prof_1"]]);
  expect(await violations(container)).toEqual([]);
});

it("takes a file that is dropped anywhere, as it is written", async () => {
  const sent: string[] = [];
  const send = async (dropped: File) => {
    sent.push(await dropped.text());
    return [];
  };
  render(<DropFiles what="a profile" send={send} onOpen={() => undefined} />);
  const dataTransfer = { types: ["Files"], files: [file("a.json", '{"intensity": 1.0}')] };
  expect(fireEvent.drop(document.body, { dataTransfer })).toBe(false);
  await vi.waitFor(() => expect(sent).toEqual(['{"intensity": 1.0}']));
});
