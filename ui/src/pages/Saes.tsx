// SAEs: what is attached and how well it reads the model, what is about to be attached, what is registered, the hub.
import { useState } from "react";
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { saes, type Sae } from "../api/saes";
import { attachments, models, watched } from "../api/queries";
import { QueryPanel } from "../parts/Panel";
import { useLink } from "../parts/useLink";
import { abilitiesOf } from "../rules/abilities";
import { count } from "../rules/bytes";
import { text } from "../rules/link";
import { memberField, withMember, type Member } from "../rules/members";
import { chooseId } from "./saes/SaeRow";
import { AddSaes } from "./saes/AddSaes";
import { AS_THEY_ARE, AttachPanel } from "./saes/AttachPanel";
import { AttachedSaes } from "./saes/AttachedSaes";
import { hasWords, SaeList } from "./saes/SaeList";
import "../css/library.css";

const LINK = { attach: memberField, q: text() };

export default function Saes() {
  const [{ attach, q }, change] = useLink(LINK);
  const all = useQuery(watched(saes));
  const attached = useQuery(attachments);
  const list = useQuery(models).data;
  const loaded = list?.models.find(({ id }) => id === list.loaded_model_id);
  const records = all.data?.saes ?? [];
  const [at, setAt] = useState<string | null>(null);
  const [options, setOptions] = useState(AS_THEY_ARE);
  const chosen = attach.map(({ sae_id }) => sae_id);
  // the panel stands where its last SAE was chosen; with a link, above the list
  const place = records.find((sae) => sae.id === at && chosen.includes(sae.id) && hasWords(sae, q));
  const choose = (sae: Sae) => {
    const rest = attach.filter(({ sae_id }) => sae_id !== sae.id);
    setAt(rest.length < attach.length ? (rest.at(-1)?.sae_id ?? null) : sae.id);
    change({ attach: rest.length < attach.length ? rest : withMember(attach, { sae_id: sae.id, layer: sae.trained_layer ?? 0 }) });
  };
  const edit = (members: Member[]) => {
    // the panel goes, and the focus with it
    if (members.length === 0) document.getElementById(chooseId(at ?? chosen[0] ?? ""))?.focus();
    if (members.length === 0) setOptions(AS_THEY_ARE);
    change({ attach: members });
  };
  const panel = attach.length > 0 && (
    <AttachPanel
      members={attach}
      records={records}
      loaded={loaded}
      attached={attached.data}
      options={options}
      onOptions={setOptions}
      onChange={edit}
    />
  );
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
          ) : abilitiesOf(loaded).why !== null ? (
            <p>
              {abilitiesOf(loaded).why} <Link to="/models">Load a checkpoint</Link> first.
            </p>
          ) : (
            <p>No SAE is attached. Choose one of the registered SAEs below, and attach it.</p>
          )
        }
      >
        {(data) => <AttachedSaes attached={data} records={records} />}
      </QueryPanel>
      {place === undefined && panel}
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
            chosen={chosen}
            onChoose={choose}
            panelAt={place?.id}
            panel={panel}
          />
        )}
      </QueryPanel>
      <AddSaes records={records} />
    </div>
  );
}
