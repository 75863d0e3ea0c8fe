// Packs of clusters on the model hub: search, look into a pack, import one definition.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { hubPacks, packDefinitions } from "../../api/documents";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";
import { Answered, Panel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { count } from "../../rules/bytes";
import { useAction } from "../documents/actions";

export function Hub({ onOpen }: { onOpen: (id: string) => void }) {
  const [draft, setDraft] = useState({ q: "", base_model: "" });
  const [asked, setAsked] = useState<typeof draft | null>(null);
  const packs = useQuery({ ...hubPacks(asked?.q ?? "", asked?.base_model ?? ""), enabled: asked !== null });
  return (
    <Panel title="Model hub" about="Public packs, asked for without a token. Nothing is sent before you search.">
      <form
        className="flow"
        onSubmit={(event) => {
          event.preventDefault();
          setAsked(draft);
        }}
      >
        <label className="field">
          Search packs
          <input type="search" maxLength={200} value={draft.q} onChange={(event) => setDraft({ ...draft, q: event.target.value })} />
        </label>
        <label className="field">
          Made for the model
          <input
            maxLength={200}
            placeholder="owner/name"
            value={draft.base_model}
            onChange={(event) => setDraft({ ...draft, base_model: event.target.value })}
          />
        </label>
        <button type="submit">Search</button>
      </form>
      {asked !== null && (
        <Answered query={packs} isEmpty={(data) => data.length === 0} empty={<p>No pack fits. Search with fewer words.</p>}>
          {(data) => (
            <ul className="packs">
              {data.map((pack) => (
                <Pack key={pack.repo_id} repo={pack.repo_id} facts={packFacts(pack.likes, pack.downloads)} onOpen={onOpen} />
              ))}
            </ul>
          )}
        </Answered>
      )}
    </Panel>
  );
}

function Pack({ repo, facts, onOpen }: { repo: string; facts: string; onOpen: (id: string) => void }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <li>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <span className="strong">{repo}</span> {facts}
        </summary>
        {isOpen && <Definitions repo={repo} onOpen={onOpen} />}
      </details>
    </li>
  );
}

function Definitions({ repo, onOpen }: { repo: string; onOpen: (id: string) => void }) {
  const files = useQuery(packDefinitions(repo));
  const add = useAction(
    (filename: string) => request("post", "/api/clusters/hub/import", { body: { repo_id: repo, filename, activate: false, on_conflict: "rename" } }),
    {
      isShown: true,
      onSuccess: (item) => {
        if (item.profile_id === null || item.profile_id === undefined) return;
        notify(`The cluster ${item.name} is imported.`);
        onOpen(item.profile_id);
      },
    },
  );
  const refused = add.data?.error;
  return (
    <Answered query={files} isEmpty={(data) => data.length === 0} empty={<p>The repository has no cluster definition.</p>}>
      {(data) => (
        <ul className="lines">
          {data.map(({ file, name, member_count }) => (
            <li key={file}>
              <span className="says">
                {name ?? file} {member_count !== null && <span className="quiet">{count(member_count)} features</span>}
              </span>
              <button
                type="button"
                className="small"
                disabled={add.isPending}
                aria-label={`Import ${name ?? file}`}
                onClick={() => add.mutate(file)}
              >
                {add.isPending && add.variables === file ? "Importing" : "Import"}
              </button>
              {add.variables === file && add.error !== null && <ErrorNotice error={add.error} />}
              {add.variables === file && refused && <p className="notice notice-bad">{refused}</p>}
              {add.variables === file && <Warnings warnings={add.data?.warnings ?? []} />}
            </li>
          ))}
        </ul>
      )}
    </Answered>
  );
}

function packFacts(likes: number | null, downloads: number | null): string {
  const facts = [likes === null ? "" : `${count(likes)} likes`, downloads === null ? "" : `${count(downloads)} downloads`];
  return facts.filter((fact) => fact !== "").join(", ");
}
