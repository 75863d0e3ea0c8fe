// The registered models with what may be done with each, and the way to add one.
import { useQuery } from "@tanstack/react-query";
import { cards, health, models, watched } from "../api/queries";
import { QueryPanel } from "../parts/Panel";
import { count } from "../rules/bytes";
import { AddModel } from "./models/AddModel";
import { ModelRow } from "./models/ModelRow";
import "../css/library.css";

export default function Models() {
  const all = useQuery(watched(models));
  const lease = useQuery(health).data?.lease;
  const memory = useQuery(cards).data;
  const loaded = all.data?.models.find(({ id }) => id === all.data.loaded_model_id);
  return (
    <div className="page">
      <header className="page-head">
        <h1>Models</h1>
        {all.data !== undefined && (
          <p className="quiet">
            {count(all.data.total)} registered, {loaded === undefined ? "none loaded" : `${loaded.name} loaded`}
          </p>
        )}
      </header>
      <QueryPanel
        title="Registered"
        about="One model is loaded at a time. Loading another one unloads it."
        query={all}
        isEmpty={(data) => data.models.length === 0}
        empty={<p>No model yet. Name a repository of the hub, or a folder of this machine, below.</p>}
      >
        {(data) => (
          <ul className="records">
            {data.models.map((model) => (
              <ModelRow key={model.id} model={model} loaded={loaded} lease={lease} memory={memory} />
            ))}
          </ul>
        )}
      </QueryPanel>
      <AddModel memory={memory} loaded={loaded} />
    </div>
  );
}
