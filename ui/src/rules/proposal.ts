// A name to propose for values that are saved.

/** The labels of the strongest features, and how many more there are, as a name that no other document has. */
export function proposedName(
  values: Readonly<Record<string, number>>,
  labels: ReadonlyMap<number, string>,
  taken: ReadonlySet<string>,
): string {
  const strongest = Object.entries(values)
    .filter(([, value]) => value !== 0)
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .map(([index]) => labels.get(Number(index)) ?? `feature ${index}`);
  if (strongest.length === 0) return "";
  const more = strongest.length > 2 ? ` and ${strongest.length - 2} more` : "";
  const name = `${strongest.slice(0, 2).join(", ").slice(0, 80)}${more}`;
  if (!taken.has(name)) return name;
  for (let number = 2; ; number += 1) {
    const numbered = `${name} (${number})`;
    if (!taken.has(numbered)) return numbered;
  }
}
