// One value for each layer, as bars side by side, with the numbers to read.
import { decimal } from "../rules/bytes";

export function LayerBars({
  title,
  label,
  unit,
  bars,
}: {
  title: string;
  label: string;
  /** What a value is: `length`. */
  unit: string;
  bars: readonly { name: string; value: number }[];
}) {
  const most = Math.max(0, ...bars.map(({ value }) => value));
  const [first, last] = [bars[0], bars.at(-1)];
  if (first === undefined || last === undefined) return null;
  return (
    <figure className="histogram layer-bars">
      <figcaption className="strong">{title}</figcaption>
      <div
        className="histogram-bars"
        role="img"
        aria-label={`${label}: ${bars.map(({ name, value }) => `${name} ${decimal(value)}`).join(", ")}`}
      >
        {bars.map(({ name, value }) => (
          <span key={name} title={`layer ${name}: ${decimal(value)}`}>
            <span style={{ blockSize: most > 0 ? `max(2px, ${(100 * value) / most}%)` : 0 }} />
          </span>
        ))}
      </div>
      <div className="histogram-axis" aria-hidden="true">
        <span>layer {first.name}</span>
        {bars.length > 1 && <span>layer {last.name}</span>}
      </div>
      <p className="quiet">The highest bar is {decimal(most)}.</p>
      <details>
        <summary>As numbers</summary>
        <table className="numbers-table">
          <thead>
            <tr>
              <th scope="col">layer</th>
              <th scope="col">{unit}</th>
            </tr>
          </thead>
          <tbody>
            {bars.map(({ name, value }) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{decimal(value, 4)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
