// The way to new SAEs: a repository of the hub by layer and width, or files of this machine.
import type { Sae } from "../../api/saes";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { useLink } from "../../parts/useLink";
import { choice } from "../../rules/link";
import { HubSaes } from "./HubSaes";
import { LocalSae } from "./LocalSae";

const LINK = { from: choice(["hub", "machine"]) };
const SOURCES = [
  { value: "hub", label: "From the hub" },
  { value: "machine", label: "From this machine" },
] as const;

export function AddSaes({ records }: { records: readonly Sae[] }) {
  const [{ from }, change] = useLink(LINK);
  return (
    <Panel
      title="Add SAEs"
      actions={<Segmented label="Source of the SAEs" options={SOURCES} value={from} onChange={(next) => change({ from: next })} />}
    >
      {from === "hub" ? <HubSaes records={records} /> : <LocalSae />}
    </Panel>
  );
}
