// The memory of a card, or of the machine: used by this service, used by others, free.
import { mebibytes, percent } from "../rules/bytes";

export function MemoryBar({
  name,
  total,
  ours,
  used,
}: {
  name: string;
  /** MiB. */
  total: number;
  /** MiB that this service uses; null where that is not known now, left out where nobody measures it. */
  ours?: number | null;
  /** MiB that all processes use together. */
  used: number;
}) {
  const own = Math.min(ours ?? 0, used);
  const parts = [
    ...(ours === undefined ? [] : [{ kind: "ours", words: "this service", size: ours }]),
    { kind: "others", words: ours == null ? "used" : "others", size: used - own },
    { kind: "free", words: "free", size: Math.max(0, total - used) },
  ];
  return (
    <div className="memory">
      <div className="memory-bar" role="meter" aria-label={`Used memory of ${name}`} aria-valuemin={0} aria-valuemax={total} aria-valuenow={used} aria-valuetext={`${mebibytes(used)} of ${mebibytes(total)}`}>
        {parts.map(({ kind, size }) => (
          <span key={kind} className={kind} style={{ inlineSize: `${(100 * (size ?? 0)) / total}%` }} />
        ))}
      </div>
      <ul className="legend">
        {parts.map(({ kind, words, size }) => (
          <li key={kind}>
            <span className={`swatch ${kind}`} aria-hidden="true" /> {words} <b>{mebibytes(size)}</b>
          </li>
        ))}
        <li className="quiet">
          {percent(used / total)} of {mebibytes(total)}
        </li>
      </ul>
    </div>
  );
}
