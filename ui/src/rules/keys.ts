// A key of the table of shortcuts, and how it is written.

export interface Shortcut {
  id: string;
  /** `mod` is Ctrl, or Command on a Mac. A blank separates keys that are pressed one after the other: `g h`. */
  keys: string;
  says: string;
  group: string;
  /** Whether the key works while a field is being edited. */
  inFields?: boolean;
}

/** The keys of a shortcut as they are written on keyboards: `Ctrl`, `Enter`. */
export function caps(keys: string, isMac = /Mac|iPhone|iPad/.test(navigator.userAgent)): string[][] {
  const names: Record<string, string> = { mod: isMac ? "⌘" : "Ctrl", Escape: "Esc" };
  return keys.split(" ").map((press) => press.split("+").map((key) => names[key] ?? key));
}
