// SAEs of a repository, one by one: what their names say, and their download or the status of their record.
import { useState } from "react";
import type { OfferedSae, Sae } from "../../api/saes";
import { Facts } from "../../parts/Facts";
import { Status } from "../../parts/Status";
import { bytes, count, decimal } from "../../rules/bytes";

const PAGE = 12;

export function UnitList({
  units,
  total,
  records,
  isBusy,
  onDownload,
}: {
  units: readonly OfferedSae[];
  total: number;
  /** The registered SAEs of this commit. */
  records: readonly Sae[];
  isBusy: boolean;
  onDownload: (path: string) => void;
}) {
  const [most, setMost] = useState(PAGE);
  if (total === 0) return <p className="empty">The repository has no SAE that this service knows.</p>;
  if (units.length === 0) return <p className="empty">No SAE of the repository fits this choice.</p>;
  return (
    <div className="flow">
      <p className="quiet" role="status">
        {units.length === total ? `${count(total)} ${total === 1 ? "SAE" : "SAEs"}` : `${count(units.length)} of ${count(total)} SAEs`}
      </p>
      <ul className="offers units">
        {units.slice(0, most).map((unit) => (
          <li key={unit.path}>
            <code className="path">{unit.path}</code>
            <Facts
              facts={[
                ["layer", unit.layer === null ? null : String(unit.layer)],
                ["width", unit.width],
                ["L0", unit.l0 === null ? null : decimal(unit.l0, Number.isInteger(unit.l0) ? 0 : 1)],
                ["site", unit.site],
                ["format", unit.format],
                ["size", unit.size_bytes === null ? null : bytes(unit.size_bytes)],
              ]}
            />
            <Download unit={unit} record={records.find(({ file_path }) => file_path === unit.path)} isBusy={isBusy} onDownload={onDownload} />
          </li>
        ))}
      </ul>
      {units.length > most && (
        <div className="row">
          <button type="button" onClick={() => setMost(most + PAGE)}>
            Show {count(Math.min(PAGE, units.length - most))} more
          </button>
        </div>
      )}
    </div>
  );
}

function Download({
  unit,
  record,
  isBusy,
  onDownload,
}: {
  unit: OfferedSae;
  record: Sae | undefined;
  isBusy: boolean;
  onDownload: (path: string) => void;
}) {
  if (!unit.is_loadable) return <span className="quiet unit-why">Not attached by this service: {unit.reason}</span>;
  if (record !== undefined && record.status !== "error") return <Status status={record.status} />;
  return (
    <button type="button" disabled={isBusy} aria-label={`Download ${unit.path}`} onClick={() => onDownload(unit.path)}>
      Download
    </button>
  );
}
