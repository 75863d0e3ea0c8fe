// One registered SAE: its status, what its files say, its download, and what may be done with it.
import { useState, type ReactNode } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useProgress } from "../../api/live";
import { cancel, download, remove, type Sae } from "../../api/saes";
import { Confirm } from "../../parts/Confirm";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Facts } from "../../parts/Facts";
import { notify } from "../../parts/Notices";
import { ProgressRow } from "../../parts/ProgressRow";
import { Status } from "../../parts/Status";
import { TokenField, useToken } from "../../parts/TokenField";
import { bytes, count, DASH, decimal } from "../../rules/bytes";
import { asksForToken, needsToken } from "../../rules/errors";
import { MEANS } from "../../rules/words";
import { given } from "../../rules/given";

/** The word of the button that sends the request for a failed download again. */
const AGAIN = { resume: "Resume", retry: "Retry" } as const;

/** The id of the button that chooses an SAE. */
export function chooseId(sae: string): string {
  return `choose-${sae}`;
}

export function SaeRow({
  sae,
  isChosen,
  onChoose,
  children,
}: {
  sae: Sae;
  isChosen: boolean;
  onChoose: () => void;
  /** What stands under the head of the row. */
  children: ReactNode;
}) {
  const client = useQueryClient();
  const [isDeleting, setDeleting] = useState(false);
  const token = useToken(sae.repository_id ?? "");
  const settled = () => client.invalidateQueries({ queryKey: ["saes"] });
  const work = useMutation({
    mutationFn: (): Promise<unknown> => (sae.status === "downloading" ? cancel(sae.id) : download(placeOf(sae), token.take)),
    onSettled: settled,
  });
  const deletion = useMutation({
    mutationFn: () => remove(sae.id),
    onSuccess: ({ freed_disk_mb }) => notify(`${sae.name} is deleted. ${count(freed_disk_mb)} MiB are free again.`),
    onSettled: settled,
  });
  const again = sae.same_request === null ? null : AGAIN[sae.same_request];
  const error = work.error ?? deletion.error;
  return (
    <li className="record" aria-label={sae.name}>
      <div className="record-head">
        <h3>{sae.name}</h3>
        <Status status={sae.status} />
        {sae.status === "downloading" && (
          <button type="button" disabled={work.isPending} aria-label={`Cancel the download of ${sae.name}`} onClick={() => work.mutate()}>
            Cancel
          </button>
        )}
        {again !== null && (
          <button type="button" className="primary" disabled={work.isPending} aria-label={`${again} the download of ${sae.name}`} onClick={() => work.mutate()}>
            {again}
          </button>
        )}
        {(sae.status === "cached" || sae.status === "attached") && (
          <button
            type="button"
            id={chooseId(sae.id)}
            className={isChosen || sae.status === "attached" ? "" : "primary"}
            aria-pressed={isChosen}
            disabled={sae.status === "cached" && !isAttachable(sae)}
            aria-label={isChosen ? `Chosen: ${sae.name}` : `${attachWord(sae)}${sae.status === "attached" ? ":" : ""} ${sae.name}`}
            title={isChosen ? "Press again to leave it out" : undefined}
            onClick={onChoose}
          >
            {isChosen ? "Chosen" : attachWord(sae)}
          </button>
        )}
      </div>
      {children}
      <Facts facts={factsOf(sae)} />
      {sae.status === "downloading" && <Download sae={sae} />}
      {sae.status === "cached" && sae.reason !== null && <p className="quiet">{sae.reason}</p>}
      {sae.error_message !== null && error === null && <p className="notice notice-bad">{sae.error_message}</p>}
      {sae.warnings.map((warning) => (
        <p key={warning} className="notice notice-warn">
          {warning}
        </p>
      ))}
      {error !== null && <ErrorNotice error={error} />}
      {again !== null && (needsToken(work.error) || asksForToken(sae.error_code)) && <TokenField field={token.field} why="The hub asks for a token." />}
      <details>
        <summary>Details and deletion</summary>
        <div className="flow">
          <Rows sae={sae} />
          <div className="row">
            <button type="button" className="danger" disabled={sae.status === "attached"} onClick={() => setDeleting(true)}>
              Delete
            </button>
            {sae.status === "attached" && <span className="quiet">Detach the SAE first.</span>}
          </div>
        </div>
      </details>
      <Confirm title={`Delete ${sae.name}?`} action="Delete" isDangerous isOpen={isDeleting} onClose={() => setDeleting(false)} onConfirm={() => deletion.mutate()}>
        <p>
          {sae.local_path !== null && sae.repository_id === null
            ? "The record is deleted. The files of this machine stay where they are."
            : "The record and its downloaded files are deleted. The record of a whole repository takes all of its SAEs with it."}
        </p>
      </Confirm>
    </li>
  );
}

function Download({ sae }: { sae: Sae }) {
  const percent = useProgress("saes", "download", sae.id)?.["percent"];
  if (sae.download?.phase === "looking") return <ProgressRow name="Download" progress={null} says="Asking the hub what the repository has" />;
  return (
    <ProgressRow
      name="Download"
      progress={typeof percent === "number" ? percent : sae.download_progress}
      done={sae.download?.downloaded_bytes ?? null}
      total={sae.download?.total_bytes ?? null}
      rate={sae.download?.speed_bps ?? null}
    />
  );
}

function Rows({ sae }: { sae: Sae }) {
  const rows = [
    ["id", sae.id],
    ["repository", sae.repository_id],
    ["commit", sae.revision],
    ["place in the repository", sae.file_path],
    ["folder", sae.local_path],
    ["hook", sae.hook_name],
    ["normalisation", sae.normalisation],
    ["stored as", sae.dtype],
    ["needs", sae.needs.length === 0 ? null : sae.needs.join(", ")],
  ] as const;
  return (
    <table className="facts">
      <tbody>
        {rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value ?? DASH}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function factsOf(sae: Sae) {
  return [
    ["layer", sae.trained_layer === null ? null : String(sae.trained_layer)],
    ["features", sae.d_sae === null ? null : count(sae.d_sae)],
    ["reads", sae.d_in === null ? null : `${count(sae.d_in)} values`],
    ["site", sae.site],
    ["activation", sae.architecture],
    ["claimed L0", sae.average_l0 === null ? null : decimal(sae.average_l0, Number.isInteger(sae.average_l0) ? 0 : 1), `${MEANS.l0} ${MEANS.claimed}`],
    ["trained on", sae.trained_on],
    ["format", sae.format],
    ["size", sae.file_size_bytes === null ? null : bytes(sae.file_size_bytes)],
  ] as const;
}

function attachWord({ status }: Sae): string {
  return status === "attached" ? "Attach elsewhere" : "Attach";
}

/** Whether an SAE can be attached now, or once the values are given that its files leave open. */
function isAttachable(sae: Sae): boolean {
  return sae.is_loadable || sae.needs.length > 0;
}

function placeOf(sae: Sae) {
  return given({
    repository_id: sae.repository_id ?? "",
    revision: sae.revision ?? undefined,
    file_path: sae.file_path ?? undefined,
  });
}
