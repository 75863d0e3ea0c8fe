// SAEs: what is attached and how well it reads the model, what is about to be attached, what is registered, the hub.
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { saes } from "../api/saes";
import { attachments, models, watched } from "../api/queries";
import { QueryPanel } from "../parts/Panel";
import { useLink } from "../parts/useLink";
import { count } from "../rules/bytes";
import { text } from "../rules/link";
import { memberField, withMember } from "../rules/members";
import { AddSaes } from "./saes/AddSaes";
import { AttachPanel } from "./saes/AttachPanel";
import { AttachedSaes } from "./saes/AttachedSaes";
import { SaeList } from "./saes/SaeList";
import "../css/library.css";

const LINK = { attach: memberField, q: text() };

export default function Saes() {
  const [{ attach, q }, change] = useLink(LINK);
  const all = useQuery(watched(saes));
  const attached = useQuery(attachments);
  const list = useQuery(models).data;
  const loaded = list?.models.find(({ id }) => id === list.loaded_model_id);
  const records = all.data?.saes ?? [];
  return (
    <div className="page">
      <header className="page-head">
        <h1>SAEs</h1>
        {all.data !== undefined && (
          <p className="quiet">
            {count(all.data.total)} registered, {count(attached.data?.count)} attached
          </p>
        )}
      </header>
      <QueryPanel
        title="Attached"
        query={attached}
        isEmpty={(data) => data.count === 0 && data.to_restore.length === 0}
        empty={
          loaded === undefined ? (
            <p>
              No SAE is attached, because no model is loaded. <Link to="/models">Load a model</Link> first.
            </p>
          ) : (
            <p>No SAE is attached. Choose one of the registered SAEs below, and attach it.</p>
          )
        }
      >
        {(data) => <AttachedSaes attached={data} records={records} />}
      </QueryPanel>
      {attach.length > 0 && (
        <AttachPanel
          members={attach}
          records={records}
          loaded={loaded}
          attached={attached.data}
          onChange={(members) => change({ attach: members })}
        />
      )}
      <QueryPanel
        title="Registered"
        query={all}
        isEmpty={(data) => data.saes.length === 0}
        empty={<p>No SAE yet. Name a repository of the hub, or a folder of this machine, below.</p>}
      >
        {(data) => (
          <SaeList
            records={data.saes}
            words={q}
            onWords={(words) => change({ q: words })}
            chosen={attach.map(({ sae_id }) => sae_id)}
            onChoose={(sae) => change({ attach: withMember(attach, { sae_id: sae.id, layer: sae.trained_layer ?? 0 }) })}
          />
        )}
      </QueryPanel>
      <AddSaes records={records} />
    </div>
  );
}
