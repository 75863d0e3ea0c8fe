// The features of a document with their labels and strengths, as bars that leave 0 to the left or to the right.
import { decimal } from "../rules/bytes";
import { signed } from "../rules/strength";
import { atIntensity } from "../rules/values";
import { PlaceLink } from "./PlaceLink";

export interface Member {
  layer: number | null;
  index: number;
  label: string | null;
  /** The value at intensity 1. */
  value: number;
  /** The SAE whose feature it is; null where that is not known. */
  sae: string | null;
}

/** The number of members that are listed at first. */
const SHOWN = 20;

interface Listing {
  members: readonly Member[];
  intensity: number;
}

export function Members({ members, intensity }: Listing) {
  const most = Math.max(1e-9, ...members.map((member) => Math.abs(member.value)));
  // with values of one sign only, bars begin at the edge
  const isBoth = members.some(({ value }) => value > 0) && members.some(({ value }) => value < 0);
  const more = members.slice(SHOWN);
  if (members.length === 0) return <p className="quiet">No feature is steered: activating clears all values.</p>;
  return (
    <>
      <Rows members={members.slice(0, SHOWN)} intensity={intensity} most={most} isBoth={isBoth} />
      {more.length > 0 && (
        <details>
          <summary>{more.length} more</summary>
          <Rows members={more} intensity={intensity} most={most} isBoth={isBoth} />
        </details>
      )}
    </>
  );
}

function Rows({ members, intensity, most, isBoth }: Listing & { most: number; isBoth: boolean }) {
  return (
    <table className="members">
      <caption className="only-read">Features and their strengths</caption>
      <thead>
        <tr>
          <th scope="col">feature</th>
          <td className="wide-only" />
          <th scope="col">strength</th>
          <th scope="col">at λ {decimal(intensity)}</th>
        </tr>
      </thead>
      <tbody>
        {members.map((member) => (
          <tr key={`${member.layer}:${member.index}`}>
            <th scope="row">
              <span className={member.label === null ? "quiet" : "strong"}>{member.label ?? "no label"}</span>{" "}
              <PlaceLink sae={member.sae} layer={member.layer} index={member.index} />
            </th>
            <td className="member-bar wide-only" data-both={isBoth || undefined} aria-hidden="true">
              <span
                className={member.value < 0 ? "negative" : ""}
                style={{ inlineSize: `${((isBoth ? 50 : 100) * Math.abs(member.value)) / most}%` }}
              />
            </td>
            <td>{signed(member.value)}</td>
            <td className="strong">{signed(atIntensity(member.value, intensity))}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
