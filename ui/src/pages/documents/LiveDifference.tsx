// How the live values differ from a document that steers one SAE.
import { Panel } from "../../parts/Panel";
import { Differences } from "../../parts/Differences";
import { useDifferenceLabels, type Compared } from "./useLive";

export function LiveDifference({
  what,
  intensity,
  compared,
  labels,
}: {
  what: string;
  intensity: number;
  compared: Compared | null;
  labels: ReadonlyMap<number, string>;
}) {
  const named = useDifferenceLabels(compared, labels);
  return (
    <Panel
      title="Live values"
      {...(compared === null ? {} : { about: `Compared at ${compared.sae.sae_id}, layer ${compared.sae.layer}.` })}
    >
      {compared === null ? (
        <p className="quiet">No attached SAE fits, so there is nothing to compare.</p>
      ) : (
        <Differences what={what} intensity={intensity} differences={compared.differences} labels={named} />
      )}
    </Panel>
  );
}
