// One patch in full: what it is, what it did, and the way to the Steer page with the edit that makes it.
import { Link } from "react-router";
import { Facts } from "../../parts/Facts";
import { sentence, plainName } from "../../rules/editWords";
import { cellPath, editOf, effectOf, metricNumber, numberSaid, placeSaid, type PatchedCell, type Sweep, type Texts } from "../../rules/patchMap";

/** An edit of a cell names neither a feature nor a vector. */
const NAMES = { feature: plainName, vector: (id: string) => id };

export function OpenCell({ cell, sweep, texts }: { cell: PatchedCell; sweep: Sweep; texts: Texts | null }) {
  const effect = effectOf(cell, sweep);
  return (
    <div className="patch-open" role="group" aria-label={`The open patch of ${cell.site}`}>
      <h4>{placeSaid(cell, sweep.tokens)}</h4>
      <Facts
        facts={[
          ["metric", metricNumber(cell.value)],
          ["change", metricNumber(effect.change)],
          ["part of the difference", effect.share === null ? null : numberSaid(effect)],
        ]}
      />
      {effect.isNoise && <p className="quiet">The change is no more than the noise floor, {metricNumber(sweep.noise_floor)}.</p>}
      {texts === null ? (
        <p className="quiet">The texts of this sweep are not in the link, so its edit cannot be made here.</p>
      ) : (
        <>
          <p className="patch-words">{sentence(editOf(cell, sweep.direction, texts), NAMES)}.</p>
          <p>
            <Link className="button" to={cellPath(cell, sweep.direction, texts)}>
              Make this edit in Steer
            </Link>
          </p>
        </>
      )}
    </div>
  );
}
