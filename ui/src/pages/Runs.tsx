// Runs: recorded answers, one of them whole, and whether it comes out the same when it is made again.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { exportRuns, importRuns, runs, RUNS_MAXIMUM, type RunSummary } from "../api/runs";
import { ErrorNotice } from "../parts/ErrorNotice";
import { FileDrop } from "../parts/FileDrop";
import { notifyError } from "../parts/Notices";
import { Panel, QueryPanel } from "../parts/Panel";
import { saveFile } from "../parts/saveFile";
import { Shelf } from "../parts/Shelf";
import { useLink } from "../parts/useLink";
import { clock } from "../rules/age";
import { bytes, count } from "../rules/bytes";
import { text } from "../rules/link";
import { kindOf } from "../rules/runs";
import { RunDetail } from "./runs/RunDetail";
import "../css/documents.css";
import "../css/runs.css";

const LINK = { id: text() };
const FIRST = 50;

export default function Runs() {
  const [{ id }, change] = useLink(LINK);
  const [limit, setLimit] = useState(FIRST);
  const list = useQuery(runs(limit));
  const open = (next: string) => change({ id: next });
  const all = list.data?.runs ?? [];
  const opened = id === "" ? (all[0]?.request_id ?? "") : id;
  const save = useMutation({ mutationFn: async () => saveFile("runs.jsonl", await exportRuns()), onError: notifyError });
  return (
    <div className="page">
      <header className="page-head">
        <div>
          <h1>Runs</h1>
          <p className="quiet">Recorded answers with all that they were made from, so that each can be made again and compared.</p>
        </div>
        <button type="button" disabled={all.length === 0 || save.isPending} onClick={() => save.mutate()}>
          {save.isPending ? "Exporting" : "Export all"}
        </button>
      </header>
      {list.data?.recording === false && <Off />}
      <div className="documents">
        <QueryPanel
          className="documents-list"
          title="Newest runs"
          query={list}
          about={list.data && `${count(list.data.total)} are stored, in ${bytes(list.data.stored_bytes)}.`}
          isEmpty={() => all.length === 0}
          empty={<p>No answer is recorded{list.data?.recording === true ? " yet. Let the model write." : "."}</p>}
        >
          {({ total }) => (
            <>
              <Shelf
                label="Runs"
                selected={opened}
                onSelect={open}
                items={all.map((one) => ({ id: one.request_id, name: nameOf(one), isActive: false, facts: factsOf(one) }))}
              />
              {total > all.length && limit < RUNS_MAXIMUM && (
                <button type="button" className="small" onClick={() => setLimit(RUNS_MAXIMUM)}>
                  Show up to {count(RUNS_MAXIMUM)}
                </button>
              )}
            </>
          )}
        </QueryPanel>
        <div className="documents-detail">{opened !== "" && <RunDetail key={opened} id={opened} onDeleted={() => open("")} />}</div>
        <div className="documents-more">
          <Import />
        </div>
      </div>
    </div>
  );
}

/** How answers come to be recorded. */
function Off() {
  return (
    <div className="notice flow">
      <p>
        <strong>Answers are not recorded.</strong> Start the service with the setting below. It then keeps every answer with its
        request, its seed and its steering in its database, for 7 days unless <code>RUNS_MAX_DAYS</code> says otherwise. The texts
        are those of users; a request with <code>store: false</code> is not kept.
      </p>
      <pre tabIndex={0} role="group" aria-label="How to record answers">
        <code>RECORD_RUNS=true steerserve serve</code>
      </pre>
    </div>
  );
}

function nameOf({ created_at, route }: RunSummary): string {
  return `${clock(created_at, Date.now())}, ${kindOf(route)}`;
}

function factsOf({ request_id, model, completion_tokens: tokens, steering_state }: RunSummary) {
  return (
    <>
      {model} · {count(tokens)} {tokens === 1 ? "token" : "tokens"} · {steering_state === null ? "not steered" : "steered"}
      <br />
      {request_id}
    </>
  );
}

function Import() {
  const client = useQueryClient();
  const add = useMutation({
    mutationFn: importRuns,
    onSuccess: () => client.invalidateQueries({ queryKey: ["runs", "list"] }),
  });
  const take = async ([file]: FileList) => {
    // a refusal is shown below
    if (file !== undefined) await add.mutateAsync(file).catch(() => undefined);
  };
  return (
    <Panel title="Import" about="Runs of another service, to make them again here.">
      <FileDrop
        title="Import runs"
        says="Drop the file of an export here, or choose it."
        label="Import runs from a file"
        accept=".jsonl,.ndjson,application/x-ndjson"
        onFiles={take}
      />
      {add.error !== null && <ErrorNotice error={add.error} />}
      {add.data !== undefined && (
        <p role="status">
          {count(add.data.imported)} imported, {count(add.data.known)} were here before.
        </p>
      )}
    </Panel>
  );
}
