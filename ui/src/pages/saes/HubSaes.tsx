// The SAEs of a repository of the hub: by layer and width, then one by one, with the download of each.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { download, preview, type OfferedSaes, type Sae } from "../../api/saes";
import { Confirm } from "../../parts/Confirm";
import { Facts } from "../../parts/Facts";
import { notify } from "../../parts/Notices";
import { RepositoryForm, type Place } from "../../parts/RepositoryForm";
import { useToken } from "../../parts/TokenField";
import { UnitGrid } from "../../parts/UnitGrid";
import { useLink } from "../../parts/useLink";
import { bytes, count } from "../../rules/bytes";
import { needsToken } from "../../rules/errors";
import { given } from "../../rules/given";
import { naturally } from "../../rules/naturally";
import { text } from "../../rules/link";
import { chosen, unitTable } from "../../rules/units";
import { UnitList } from "./UnitList";

const LINK = { repo: text(), revision: text(), layer: text(), width: text(), words: text() };

export function HubSaes({ records }: { records: readonly Sae[] }) {
  const client = useQueryClient();
  const [link, change] = useLink(LINK);
  const [isAll, setAll] = useState(false);
  const token = useToken(link.repo);
  // the hub is asked about the repository of a link when a person asks for it
  const [asked, setAsked] = useState<Place | null>(null);
  const isAsked = asked?.repo === link.repo && asked.revision === link.revision;
  const shown = useQuery({ ...preview(link.repo, link.revision, token.take), enabled: isAsked });
  const begin = useMutation({
    mutationFn: (file_path: string | undefined) =>
      download(given({ repository_id: link.repo, revision: link.revision || undefined, file_path }), token.take),
    onSuccess: ({ message }) => notify(`${message[0]?.toUpperCase()}${message.slice(1)}.`),
    onSettled: () => client.invalidateQueries({ queryKey: ["saes"] }),
  });
  const offered = shown.data;
  const units = offered === undefined ? [] : chosen(offered.files, link).sort((a, b) => naturally(a.path, b.path));
  return (
    <div className="flow">
      <RepositoryForm
        place={link}
        example="google/gemma-scope-2b-pt-res"
        shown={shown}
        begin={begin}
        token={token.field}
        tokenWhy={needsToken(shown.error ?? begin.error) ? "The hub asks for a token." : null}
        onPlace={(next) => {
          setAsked(next);
          change({ ...next, layer: "", width: "", words: "" }, { push: true });
        }}
      />
      {offered !== undefined && (
        <div className="flow offered">
          <h3>{offered.repository_id}</h3>
          <Facts facts={factsOf(offered)} />
          {offered.files.length > 1 && (
            <UnitGrid
              table={unitTable(offered.files)}
              layer={link.layer}
              width={link.width}
              onChoose={(layer, width) => change({ layer, width })}
            />
          )}
          {offered.files.length > 1 && (
            <label className="field">
              Words of the path
              <input type="search" value={link.words} placeholder="average_l0_71" onChange={(event) => change({ words: event.target.value })} />
            </label>
          )}
          <UnitList
            units={units}
            total={offered.files.length}
            records={records.filter((record) => record.repository_id === offered.repository_id && (record.revision === offered.revision || isLooking(record)))}
            isBusy={begin.isPending}
            onDownload={(path) => begin.mutate(path)}
          />
          {offered.total_units > 1 && (
            <div className="row">
              <button type="button" disabled={begin.isPending} onClick={() => setAll(true)}>
                Download all {count(offered.total_units)} SAEs
              </button>
              <span className="quiet">{bytes(offered.total_bytes)} in the repository</span>
            </div>
          )}
          <Confirm
            title={`Download all SAEs of ${offered.repository_id}?`}
            action="Download all"
            isOpen={isAll}
            onClose={() => setAll(false)}
            onConfirm={() => begin.mutate(undefined)}
          >
            <p>
              {count(offered.total_units)} SAEs, {bytes(offered.total_bytes)} in the repository. Each gets a record of its own.
            </p>
          </Confirm>
        </div>
      )}
    </div>
  );
}

/** Whether the hub is being asked about the request of a record, whose commit is not known before. */
function isLooking(record: Sae) {
  return record.download?.phase === "looking";
}

function factsOf(offered: OfferedSaes) {
  return [
    ["SAEs", count(offered.total_units)],
    ["files", count(offered.total_files)],
    ["size", bytes(offered.total_bytes)],
    ["model", offered.model_id],
    ["other files", count(offered.total_other_files)],
    ["commit", <code key="commit">{offered.revision.slice(0, 8)}</code>, offered.revision],
  ] as const;
}
