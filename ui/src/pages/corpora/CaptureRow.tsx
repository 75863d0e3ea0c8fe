// One capture: what was read of which sites, its progress, its files, and its end.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { captureFile, captureFiles, readCaptureFile, removeCapture, type Capture } from "../../api/captures";
import { key } from "../../api/key";
import { Confirm } from "../../parts/Confirm";
import { Facts } from "../../parts/Facts";
import { Clock } from "../../parts/Moment";
import { notifyError } from "../../parts/Notices";
import { Answered } from "../../parts/Panel";
import { saveFile } from "../../parts/saveFile";
import { bytes, count } from "../../rules/bytes";
import { layersSaid } from "../../rules/layers";
import { JobRow } from "../jobs/JobRow";

export function CaptureRow({ capture }: { capture: Capture }) {
  const { id, name, state, model, rows, texts, tokens, dtype, stored_bytes, job_id, created_at } = capture;
  const client = useQueryClient();
  const changed = () => Promise.all(["captures", "jobs"].map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  const remove = useMutation({ mutationFn: () => removeCapture(id), onError: notifyError, onSettled: changed });
  const [isAsking, setAsking] = useState(false);
  const [isOpen, setOpen] = useState(false);
  return (
    <li className="record" data-current={state === "reading" || undefined}>
      <div className="record-head">
        <h3>{name}</h3>
        <span className="tag">{state}</span>
        <button
          type="button"
          className="small danger"
          aria-label={`Delete the capture ${name}`}
          disabled={remove.isPending}
          onClick={() => setAsking(true)}
        >
          Delete
        </button>
      </div>
      <p className="quiet">
        Read by {model}, begun at <Clock at={created_at} />.
      </p>
      {job_id !== null && <JobRow key={job_id} id={job_id} name={`The capture ${name}`} onDone={() => void changed()} />}
      {state === "stopped" && (
        <p className="stale">The reading was cut after {count(rows)} rows. To carry it on, send the same request again.</p>
      )}
      <Facts
        facts={[
          ["sites", sitesSaid(capture)],
          ["rows", count(rows), "A row is the value of a site at one token"],
          ["texts", count(texts)],
          ["tokens", count(tokens)],
          ["numbers", dtype],
          ["stored", bytes(stored_bytes)],
        ]}
      />
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Files of {name}</summary>
        {isOpen && <Files id={id} name={name} />}
      </details>
      <Confirm
        title={`Delete the capture ${name}?`}
        action="Delete"
        isDangerous
        isOpen={isAsking}
        onConfirm={() => remove.mutate()}
        onClose={() => setAsking(false)}
      >
        <p>
          The files of <b>{name}</b> are deleted for everyone{state === "reading" && <>, and the reading ends</>}.
        </p>
      </Confirm>
    </li>
  );
}

function Files({ id, name }: { id: string; name: string }) {
  const query = useQuery(captureFiles(id));
  const save = useMutation({
    mutationFn: async (file: string) => saveFile(file, await readCaptureFile(id, file)),
    onError: notifyError,
  });
  return (
    <Answered query={query} isEmpty={(files) => files.length === 0} empty={<p>No file is whole yet.</p>}>
      {(files) => (
        <ul className="lines" aria-label={`Files of ${name}`}>
          {files.map((file) => (
            <li key={file.name}>
              <span className="says">
                <a
                  href={captureFile(id, file.name).url}
                  download={file.name}
                  onClick={(event) => {
                    // the browser sends no key with a link
                    if (key() === null) return;
                    event.preventDefault();
                    save.mutate(file.name);
                  }}
                >
                  {file.name}
                </a>
              </span>
              <span className="numbers quiet">{bytes(file.bytes)}</span>
            </li>
          ))}
        </ul>
      )}
    </Answered>
  );
}

/** The sites with their layers: `resid_post of layers 1, 3; hook_z of layer 2`. */
function sitesSaid({ sites }: Capture): string {
  const layers = new Map<string, number[]>();
  for (const { site, layer } of sites) layers.set(site, [...(layers.get(site) ?? []), layer]);
  return [...layers].map(([site, all]) => `${site} of ${layersSaid(all)}`).join("; ");
}
