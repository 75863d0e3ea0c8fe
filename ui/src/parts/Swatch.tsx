// The kind of a line in a chart, beside its name. Lines differ in colour and in their dashes.

/** The dashes of each kind of line, in pixels. */
export const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2], [12, 5]];

export function Swatch({ line }: { line: number }) {
  return (
    <svg className={`line-swatch line-${line}`} width="28" height="8" viewBox="0 0 28 8" aria-hidden="true">
      <line x1="0" y1="4" x2="28" y2="4" stroke="currentColor" strokeWidth="2.5" strokeDasharray={DASHES[line]?.join(" ")} />
    </svg>
  );
}
