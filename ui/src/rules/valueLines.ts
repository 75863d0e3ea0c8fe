// Steering values as text, a feature a line: `90: 20`.

const LINE = /^\s*(\d+)\s*[:=,\s]\s*([+−-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*$/i;

export type Read = { values: Record<string, number>; fault: null } | { values: null; fault: string };

export function lines(values: Readonly<Record<string, number>>): string {
  return Object.entries(values)
    .sort(([a], [b]) => Number(a) - Number(b))
    .map(([index, value]) => `${index}: ${value}`)
    .join("\n");
}

/** The values in a text, or what is wrong with its first line that cannot be read. Empty lines are left out. */
export function readLines(text: string): Read {
  const values: Record<string, number> = {};
  for (const [place, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const [, written = "", value = ""] = LINE.exec(line) ?? [];
    const index = String(Number(written));
    if (written === "") return { values: null, fault: `Line ${place + 1} is not a feature and its value, as in 90: 20.` };
    if (index in values) return { values: null, fault: `Line ${place + 1} has feature ${index} a second time.` };
    values[index] = Number(value.replace("−", "-"));
  }
  return { values, fault: null };
}
