// Where the values that steer now differ from those of a document.
import { decimal, DASH } from "../rules/bytes";
import { signed } from "../rules/strength";
import type { Difference } from "../rules/values";

/** The number of features that are listed at first. */
const SHOWN = 12;

export function Differences({
  what,
  intensity,
  differences,
  labels,
}: {
  /** What is compared: `this profile`. */
  what: string;
  intensity: number;
  differences: readonly Difference[];
  labels: ReadonlyMap<number, string>;
}) {
  if (differences.length === 0) {
    return (
      <p>
        <span aria-hidden="true">=</span> The live values are those of {what} at λ {decimal(intensity)}.
      </p>
    );
  }
  const first = differences.slice(0, SHOWN);
  const more = differences.slice(SHOWN);
  return (
    <div className="flow">
      <p>
        <span aria-hidden="true">≠</span> {differences.length} {differences.length === 1 ? "feature differs" : "features differ"} from{" "}
        {what} at λ {decimal(intensity)}.
      </p>
      <Rows rows={first} what={what} labels={labels} />
      {more.length > 0 && (
        <details>
          <summary>{more.length} more</summary>
          <Rows rows={more} what={what} labels={labels} />
        </details>
      )}
    </div>
  );
}

function Rows({ rows, what, labels }: { rows: readonly Difference[]; what: string; labels: ReadonlyMap<number, string> }) {
  return (
    <table className="numbers-table differences">
      <thead>
        <tr>
          <th scope="col">feature</th>
          <th scope="col">{what}</th>
          <th scope="col">live</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ index, saved, live }) => (
          <tr key={index}>
            <th scope="row">
              {labels.get(index)} <span className="place">#{index}</span>
            </th>
            <td>{saved === null ? DASH : signed(saved)}</td>
            <td className="live-value">{live === null ? DASH : signed(live)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
