// The one table of keys. It feeds the handler and the list that `?` opens.
import { useEffect, useRef } from "react";
import type { Shortcut } from "./rules/keys";

export const SHORTCUTS = [
  { id: "help", keys: "?", says: "Show this list of keys", group: "Everywhere" },
  { id: "stop", keys: "Escape", says: "Stop what runs, or close a dialog", group: "Everywhere", inFields: true },
  { id: "send", keys: "mod+Enter", says: "Generate, or send the form", group: "Everywhere", inFields: true },
  { id: "find", keys: "/", says: "Go to the search field of the page", group: "Everywhere" },
  { id: "pause", keys: "p", says: "Pause the page Live, or go on", group: "Everywhere" },
  { id: "theme", keys: "t", says: "Switch between dark and light", group: "Everywhere" },
] as const satisfies readonly Shortcut[];

/** Keys that the browser itself gives native controls. The list names them. */
export const NATIVE: readonly Omit<Shortcut, "id">[] = [
  { keys: "←", says: "Smaller by one step", group: "On a slider" },
  { keys: "→", says: "Larger by one step", group: "On a slider" },
  { keys: "PageUp", says: "Larger by a tenth of its length", group: "On a slider" },
  { keys: "PageDown", says: "Smaller by a tenth of its length", group: "On a slider" },
  { keys: "→", says: "The next token; ← the one before, ↑ and ↓ the next line", group: "On the tokens of a text" },
  { keys: "Enter", says: "Keep the token open, so that Tab reaches its features", group: "On the tokens of a text" },
];

export type ShortcutId = (typeof SHORTCUTS)[number]["id"];
type Action = () => void;

const actions = new Map<string, Action[]>();
/** The time within which the second key of a sequence must follow, in milliseconds. */
const SEQUENCE = 1_200;

/** Bind an action to a key of the table while the component is shown. The binding that came last wins. */
export function useShortcut(id: ShortcutId, action: Action, isOn = true): void {
  const latest = useRef(action);
  useEffect(() => {
    latest.current = action;
  });
  useEffect(() => {
    if (!isOn) return undefined;
    const call = () => latest.current();
    actions.set(id, [...(actions.get(id) ?? []), call]);
    return () => {
      actions.set(id, (actions.get(id) ?? []).filter((other) => other !== call));
    };
  }, [id, isOn]);
}

/** A handler of `keydown` for the table and for more shortcuts with their actions, such as those of the pages. */
export function keyHandler(more: readonly { shortcut: Shortcut; action: Action }[]) {
  let before = "";
  let at = 0;
  const table: readonly Shortcut[] = [...SHORTCUTS, ...more.map((entry) => entry.shortcut)];
  return (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    const pressed = name(event);
    const sequence = event.timeStamp - at < SEQUENCE ? `${before} ${pressed}` : pressed;
    const isField = isEditable(event.target);
    const shortcut =
      table.find((entry) => entry.keys === sequence) ?? table.find((entry) => entry.keys === pressed);
    before = isField ? "" : pressed;
    at = event.timeStamp;
    if (shortcut === undefined || (isField && !shortcut.inFields)) return;
    const action =
      more.find((entry) => entry.shortcut === shortcut)?.action ?? actions.get(shortcut.id)?.at(-1);
    if (action === undefined) return;
    before = "";
    // Escape also closes dialogs, which the browser does by itself
    if (shortcut.keys !== "Escape") event.preventDefault();
    action();
  };
}

function name(event: KeyboardEvent): string {
  const mod = event.ctrlKey || event.metaKey ? "mod+" : "";
  const alt = event.altKey ? "alt+" : "";
  return mod + alt + event.key;
}

function isEditable(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "range"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}
