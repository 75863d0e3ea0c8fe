// The order of names as people read them: numbers by their size, also short ones such as 16k and 1m.

const PARTS = /(\d+(?:\.\d+)?)([kmb](?![a-z]))?|\D+/gi;
const UNITS: Record<string, number> = { k: 1e3, m: 1e6, b: 1e9 };
type Part = string | number;

/** Which of two names comes first, as `Array.sort` asks. */
export function naturally(a: string, b: string): number {
  const [left, right] = [partsOf(a), partsOf(b)];
  for (let at = 0; at < Math.min(left.length, right.length); at += 1) {
    const order = compared(left[at] ?? "", right[at] ?? "");
    if (order !== 0) return order;
  }
  return left.length - right.length || a.localeCompare(b);
}

function compared(a: Part, b: Part): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

function partsOf(name: string): Part[] {
  return [...name.matchAll(PARTS)].map(([whole, digits, unit]) =>
    digits === undefined ? whole : Number(digits) * (UNITS[unit?.toLowerCase() ?? ""] ?? 1),
  );
}
