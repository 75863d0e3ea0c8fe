import { fireEvent, render } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { keyHandler, SHORTCUTS, useShortcut, type ShortcutId } from "./shortcuts";

const GO = { id: "go/health", keys: "g h", says: "Go to Health", group: "Pages" };

function Bound({ id, action }: { id: ShortcutId; action: () => void }) {
  useShortcut(id, action);
  return (
    <label>
      Field <input />
    </label>
  );
}

function listening(go = vi.fn()) {
  const handler = keyHandler([{ shortcut: GO, action: go }]);
  document.addEventListener("keydown", handler);
  return () => document.removeEventListener("keydown", handler);
}

it("has no two actions on one key", () => {
  const keys = SHORTCUTS.map((shortcut) => shortcut.keys);
  expect(new Set(keys).size).toBe(keys.length);
});

it("goes to a page by two keys, and not by the second alone", () => {
  const go = vi.fn();
  const end = listening(go);
  fireEvent.keyDown(document.body, { key: "h" });
  expect(go).not.toHaveBeenCalled();
  fireEvent.keyDown(document.body, { key: "g" });
  fireEvent.keyDown(document.body, { key: "h" });
  expect(go).toHaveBeenCalledTimes(1);
  end();
});

it("leaves letters to a field that is edited, and takes the keys that work there", () => {
  const [find, send] = [vi.fn(), vi.fn()];
  const end = listening();
  const { container, unmount } = render(<Bound id="find" action={find} />);
  render(<Bound id="send" action={send} />);
  const field = container.querySelector("input") ?? document.body;
  fireEvent.keyDown(field, { key: "/" });
  expect(find).not.toHaveBeenCalled();
  fireEvent.keyDown(field, { key: "Enter", ctrlKey: true });
  expect(send).toHaveBeenCalledTimes(1);
  fireEvent.keyDown(document.body, { key: "/" });
  expect(find).toHaveBeenCalledTimes(1);
  unmount();
  fireEvent.keyDown(document.body, { key: "/" });
  expect(find).toHaveBeenCalledTimes(1);
  end();
});
