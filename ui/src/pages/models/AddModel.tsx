// The way to a new model: a repository of the hub, looked at before it is downloaded, or files of this machine.
import type { Model } from "../../api/models";
import type { Cards } from "../../api/queries";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { useLink } from "../../parts/useLink";
import { choice } from "../../rules/link";
import { HubModel } from "./HubModel";
import { LocalModel } from "./LocalModel";

const LINK = { from: choice(["hub", "machine"]) };
const SOURCES = [
  { value: "hub", label: "From the hub" },
  { value: "machine", label: "From this machine" },
] as const;

export function AddModel({ memory, loaded }: { memory: Cards | undefined; loaded: Model | undefined }) {
  const [{ from }, change] = useLink(LINK);
  return (
    <Panel
      title="Add a model"
      actions={<Segmented label="Source of the model" options={SOURCES} value={from} onChange={(next) => change({ from: next })} />}
    >
      {from === "hub" ? <HubModel memory={memory} loaded={loaded} /> : <LocalModel />}
    </Panel>
  );
}
