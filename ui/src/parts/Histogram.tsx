// How often which values were observed, as bars over the values, with the numbers to read.
import { count } from "../rules/bytes";
import type { Distribution } from "../rules/histogram";

export function Histogram({
  label,
  distribution,
  noun = "record",
}: {
  label: string;
  distribution: Distribution;
  /** What has one value each. */
  noun?: string;
}) {
  const { zeros, bins } = distribution;
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const [first, last] = [bins[0], bins.at(-1)];
  if (first === undefined || last === undefined) {
    return <p className="quiet">Each of the {count(zeros)} values is 0: the feature was not active.</p>;
  }
  return (
    <figure className="histogram">
      <div className="histogram-bars" role="img" aria-label={`${label}, from ${first.from} to ${last.to}`}>
        {bins.map((bin) => (
          <span key={bin.from} title={`${bin.from} to ${bin.to}: ${count(bin.count)}`}>
            <span style={{ blockSize: bin.count === 0 ? 0 : `max(2px, ${(100 * bin.count) / most}%)` }} />
          </span>
        ))}
      </div>
      <div className="histogram-axis" aria-hidden="true">
        <span>{first.from}</span>
        <span>{bins[Math.floor(bins.length / 2)]?.from}</span>
        <span>{last.to}</span>
      </div>
      <figcaption className="quiet">
        The highest bar is {count(most)} {most === 1 ? noun : `${noun}s`}. In {count(zeros)} more the feature was not
        active.
      </figcaption>
      <details>
        <summary>As numbers</summary>
        <table className="numbers-table">
          <thead>
            <tr>
              <th scope="col">value</th>
              <th scope="col">{noun}s</th>
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">0</th>
              <td>{count(zeros)}</td>
            </tr>
            {bins
              .filter((bin) => bin.count > 0)
              .map((bin) => (
                <tr key={bin.from}>
                  <th scope="row">
                    {bin.from} to {bin.to}
                  </th>
                  <td>{count(bin.count)}</td>
                </tr>
              ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
