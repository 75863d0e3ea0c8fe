// The SAEs of a repository by layer and width. Each cell has their number, and a press chooses the cell.
import { count } from "../rules/bytes";
import { UNSAID, written, type UnitTable } from "../rules/units";

export function UnitGrid({
  table,
  layer,
  width,
  onChoose,
}: {
  table: UnitTable;
  /** The chosen layer and width; empty for all. */
  layer: string;
  width: string;
  onChoose: (layer: string, width: string) => void;
}) {
  return (
    <div className="unit-grid" tabIndex={0} role="group" aria-label="SAEs by layer and width">
      <table>
        <thead>
          <tr>
            <th scope="col">
              <button type="button" className="small" aria-pressed={layer === "" && width === ""} onClick={() => onChoose("", "")}>
                all
              </button>
            </th>
            {table.widths.map((column) => (
              <th key={written(column)} scope="col">
                <Choice
                  says={column === null ? "no width" : column}
                  isOn={width === written(column) && layer === ""}
                  onPress={() => onChoose("", written(column))}
                />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.layers.map((row) => (
            <tr key={written(row)}>
              <th scope="row">
                <Choice
                  says={row === null ? "no layer" : `layer ${row}`}
                  isOn={layer === written(row) && width === ""}
                  onPress={() => onChoose(written(row), "")}
                />
              </th>
              {table.widths.map((column) => {
                const size = table.count(row, column);
                const isOn = layer === written(row) && width === written(column);
                return (
                  <td key={written(column)}>
                    {size > 0 && (
                      <button
                        type="button"
                        className="small"
                        aria-pressed={isOn}
                        aria-label={`${size} at ${words(row, column)}`}
                        onClick={() => onChoose(isOn ? "" : written(row), isOn ? "" : written(column))}
                      >
                        {count(size)}
                      </button>
                    )}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Choice({ says, isOn, onPress }: { says: string; isOn: boolean; onPress: () => void }) {
  return (
    <button type="button" className="small" aria-pressed={isOn} onClick={onPress}>
      {says}
    </button>
  );
}

function words(layer: number | null, width: string | null): string {
  return `${layer === null ? "no layer" : `layer ${layer}`}, ${width === null || width === UNSAID ? "no width" : `width ${width}`}`;
}
