// Lines over a number, such as what is measured at each strength. Lines differ in colour and in their dashes.
import { decimal } from "../rules/bytes";
import { at, scaleOf, type Line } from "../rules/effects";
import { DASHES, Swatch } from "./Swatch";

const WIDTH = 480;
const HEIGHT = 180;

export function Curves({
  title,
  unit,
  lines,
  level = null,
  mark = null,
}: {
  title: string;
  /** What the values are: `nats`. */
  unit: string;
  lines: readonly Line[];
  /** A value that is drawn as a line across, with its name. */
  level?: { value: number; name: string } | null;
  /** A place that is marked, with its name. */
  mark?: { place: number; name: string } | null;
}) {
  const scale = scaleOf(lines, level?.value ?? null);
  const placed = (place: number, value: number) => {
    const [x, y] = at(scale, place, value);
    return `${(x * WIDTH).toFixed(1)},${(y * HEIGHT).toFixed(1)}`;
  };
  const label = lines.map(({ name, points }) => `${name}: ${points.map(([place, value]) => `${decimal(value)} at ${place}`).join(", ")}`);
  return (
    <figure className="curves">
      <figcaption>
        <span className="strong">{title}</span> <span className="quiet">in {unit}</span>
      </figcaption>
      <div className="curves-frame">
        <div className="curves-values quiet numbers" aria-hidden="true">
          <span>{decimal(scale.y[1])}</span>
          <span>{decimal(scale.y[0])}</span>
        </div>
        <svg viewBox={`-4 -4 ${WIDTH + 8} ${HEIGHT + 8}`} role="img" aria-label={`${title}, ${unit}. ${label.join(". ")}`}>
          {level !== null && (
            <polyline className="curves-level" points={`${placed(scale.x[0], level.value)} ${placed(scale.x[1], level.value)}`} />
          )}
          {mark !== null && (
            <polyline className="curves-level" points={`${placed(mark.place, scale.y[0])} ${placed(mark.place, scale.y[1])}`} />
          )}
          {lines.map(({ name, points }, line) => (
            <g key={name} className={`line-${line}`}>
              <polyline
                fill="none"
                stroke="currentColor"
                strokeWidth="2.5"
                strokeDasharray={DASHES[line]?.join(" ")}
                points={points.flatMap(([place, value]) => (value === null ? [] : [placed(place, value)])).join(" ")}
              />
              {points.map(([place, value]) => {
                if (value === null) return null;
                const [x, y] = at(scale, place, value);
                return (
                  <circle key={place} cx={x * WIDTH} cy={y * HEIGHT} r="3.5" fill="currentColor">
                    <title>{`${name}: ${decimal(value, 3)} at ${place}`}</title>
                  </circle>
                );
              })}
            </g>
          ))}
        </svg>
        <div className="curves-places quiet numbers" aria-hidden="true">
          <span>{decimal(scale.x[0], 1)}</span>
          <span>{decimal(scale.x[1], 1)}</span>
        </div>
      </div>
      <p className="row curves-names">
        {lines.map(({ name }, line) => (
          <span key={name} className="row">
            <Swatch line={line} /> {name}
          </span>
        ))}
        {level !== null && <span className="quiet">across: {level.name}</span>}
        {mark !== null && <span className="quiet">upright: {mark.name}</span>}
      </p>
    </figure>
  );
}
