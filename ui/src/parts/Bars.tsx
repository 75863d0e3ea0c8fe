// Values as horizontal bars, drawn to the largest value, which is printed as the scale.
import type { ReactNode } from "react";
import { decimal } from "../rules/bytes";

export interface Bar {
  id: string;
  label: ReactNode;
  value: number;
  /** The number that puts the bar in its place, where that is not the value. */
  rankedBy?: number | undefined;
  action?: ReactNode;
  /** What stands in a line of its own under the bar. */
  beneath?: ReactNode;
}

export function Bars({
  label,
  bars,
  scale,
  format = decimal,
}: {
  label: string;
  bars: readonly Bar[];
  /** The value of a full bar; by default the largest value. */
  scale?: number;
  format?: (value: number) => string;
}) {
  const most = scale ?? Math.max(0, ...bars.map((bar) => Math.abs(bar.value)));
  return (
    <figure className="bars">
      <ol aria-label={label}>
        {bars.map((bar) => (
          <li key={bar.id}>
            <span className="bar-label">{bar.label}</span>
            <span className="bar-track" aria-hidden="true">
              <span
                className={bar.value < 0 ? "bar-fill negative" : "bar-fill"}
                style={{ inlineSize: `${most > 0 ? Math.min(100, (100 * Math.abs(bar.value)) / most) : 0}%` }}
              />
            </span>
            <span className="bar-value">
              {format(bar.value)}
              {bar.rankedBy !== undefined && (
                <span className="bar-rank" title="The number that ranks">
                  <span className="only-read">, ranked by </span>
                  {decimal(bar.rankedBy)}
                </span>
              )}
            </span>
            {bar.action}
            {bar.beneath !== undefined && <div className="bar-beneath">{bar.beneath}</div>}
          </li>
        ))}
      </ol>
      <figcaption className="quiet">A full bar is {format(most)}.</figcaption>
    </figure>
  );
}
