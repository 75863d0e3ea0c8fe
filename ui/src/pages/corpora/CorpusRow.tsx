// One corpus: what was read of which texts, the SAEs that it covers, its progress, and its end.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { removeCorpus, type Corpus } from "../../api/corpora";
import { saes } from "../../api/saes";
import { Confirm } from "../../parts/Confirm";
import { Facts } from "../../parts/Facts";
import { Clock } from "../../parts/Moment";
import { notifyError } from "../../parts/Notices";
import { bytes, count } from "../../rules/bytes";
import { JobRow } from "../jobs/JobRow";

export function CorpusRow({ corpus }: { corpus: Corpus }) {
  const { id, name, state, source, model, texts, tokens, counted, context, examples, stored_bytes, job_id } = corpus;
  const client = useQueryClient();
  const changed = () => Promise.all(["corpora", "attachments", "features", "jobs"].map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  const remove = useMutation({ mutationFn: () => removeCorpus(id), onError: notifyError, onSettled: changed });
  const [isAsking, setAsking] = useState(false);
  return (
    <li className="record" data-current={state === "reading" || undefined}>
      <div className="record-head">
        <h3>{name}</h3>
        <span className="tag">{state}</span>
        <button
          type="button"
          className="small danger"
          aria-label={`Delete ${name}`}
          disabled={remove.isPending}
          onClick={() => setAsking(true)}
        >
          Delete
        </button>
      </div>
      <p className="quiet">
        {placeOf(source)}, read by {model}, begun at <Clock at={corpus.created_at} />.
      </p>
      {job_id !== null && <JobRow key={job_id} id={job_id} name={`The reading of ${name}`} onDone={() => void changed()} />}
      {state === "stopped" && (
        <p className="stale">
          The reading was cut after {count(tokens)} tokens. To carry it on, send the same texts with the same settings under this
          name again.
        </p>
      )}
      <Facts
        facts={[
          ["texts", count(texts)],
          ["tokens", count(tokens)],
          ["counted", count(counted), "Tokens that count in the statistics: the first of each context and special tokens do not"],
          ["context", count(context), "The tokens that are read together"],
          ["examples", count(examples), "The examples of each feature"],
          ["stored", bytes(stored_bytes)],
        ]}
      />
      <Covered corpus={corpus} />
      <Confirm
        title={`Delete ${name}?`}
        action="Delete"
        isDangerous
        isOpen={isAsking}
        onConfirm={() => remove.mutate()}
        onClose={() => setAsking(false)}
      >
        <p>
          <b>{name}</b> and what it says about features are deleted for everyone
          {state === "reading" && <>, and the reading ends</>}. Features are then ranked by other corpora, or by their values.
        </p>
      </Confirm>
    </li>
  );
}

function Covered({ corpus: { name, saes: read } }: { corpus: Corpus }) {
  const known = useQuery(saes).data?.saes ?? [];
  return (
    <ul className="corpus-saes" aria-label={`SAEs of ${name}`}>
      {read.map(({ sae_id, layer, features }) => (
        <li key={`${sae_id} ${layer}`}>
          <span className="place">layer {layer}</span>{" "}
          <Link to={`/features?sae=${encodeURIComponent(sae_id)}`}>{known.find(({ id }) => id === sae_id)?.name ?? sae_id}</Link>
          {features !== null && <span className="quiet"> {count(features)} features fire</span>}
        </li>
      ))}
    </ul>
  );
}

function placeOf({ kind, local_path, repo_id, file_path, revision }: Corpus["source"]): string {
  if (kind === "inline") return "Texts that were sent";
  if (kind === "local") return local_path ?? "A file of the machine";
  return `${repo_id}/${file_path}${revision === null ? "" : ` at ${revision}`}`;
}
