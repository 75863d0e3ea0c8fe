// The registered trained lenses, and the form that registers one of this machine or of the model hub.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import {
  describedRegistration,
  lenses as asked,
  registeredBy,
  registerLens,
  removeLens,
  type LensBody,
  type TrainedLens,
} from "../../api/lens";
import { Confirm } from "../../parts/Confirm";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify, notifyError } from "../../parts/Notices";
import { Segmented } from "../../parts/Segmented";
import { TokenField, useToken } from "../../parts/TokenField";
import { bytes, count } from "../../rules/bytes";
import { JobRow } from "../jobs/JobRow";

const KINDS = [
  { value: "local", label: "This machine", title: "A folder or a file on the machine of the service; it stays there" },
  { value: "huggingface", label: "Hub", title: "A folder or a file in a repository of the model hub" },
] as const;
const TYPES = ["model", "space", "dataset"] as const;
const EMPTY = { local_path: "", repository_id: "", file_path: "", revision: "" };

export function TrainedLenses({ lenses, onRegistered }: { lenses: readonly TrainedLens[]; onRegistered: (id: string) => void }) {
  return (
    <details>
      <summary>{lenses.length === 0 ? "Trained lenses" : `${count(lenses.length)} trained ${lenses.length === 1 ? "lens" : "lenses"}`}</summary>
      <div className="flow">
        {lenses.length > 0 && (
          <ul className="lines" aria-label="Trained lenses">
            {lenses.map((one) => (
              <Row key={one.id} one={one} />
            ))}
          </ul>
        )}
        <Register onRegistered={onRegistered} />
      </div>
    </details>
  );
}

function Row({ one }: { one: TrainedLens }) {
  const client = useQueryClient();
  const [isAsking, setAsking] = useState(false);
  const remove = useMutation({
    mutationFn: () => removeLens(one.id),
    onError: notifyError,
    onSettled: () => client.invalidateQueries({ queryKey: asked.queryKey }),
  });
  return (
    <li>
      <span className="strong">{one.name}</span>
      <span className="says quiet">{said(one)}</span>
      <button
        type="button"
        className="small danger"
        aria-label={`Delete the lens ${one.name}`}
        disabled={remove.isPending}
        onClick={() => setAsking(true)}
      >
        {remove.isPending ? "Deleting" : "Delete"}
      </button>
      <Confirm
        title={`Delete the lens ${one.name}?`}
        action="Delete"
        isDangerous
        isOpen={isAsking}
        onConfirm={() => remove.mutate()}
        onClose={() => setAsking(false)}
      >
        <p>
          <b>{one.name}</b> is deleted for everyone.{" "}
          {one.source.kind === "local" ? "Its files stay where they are." : "Its files are removed from the machine of the service."}
        </p>
      </Confirm>
    </li>
  );
}

function Register({ onRegistered }: { onRegistered: (id: string) => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [source, setSource] = useState<LensBody["source"]>("local");
  const [type, setType] = useState<(typeof TYPES)[number]>("model");
  const [place, setPlace] = useState(EMPTY);
  const [job, setJob] = useState("");
  const token = useToken(place.repository_id.trim());
  const said = (key: keyof typeof EMPTY) => (place[key].trim() === "" ? {} : { [key]: place[key].trim() });
  const body: LensBody =
    source === "local"
      ? { name: name.trim(), source, ...said("local_path") }
      : {
          ...{ name: name.trim(), source, repository_type: type },
          ...{ ...said("repository_id"), ...said("file_path"), ...said("revision") },
        };
  const needed = source === "local" ? place.local_path : place.repository_id;
  const begin = useMutation({
    mutationFn: () => {
      const hub_token = source === "huggingface" ? token.take() : undefined;
      return registerLens(hub_token === undefined ? body : { ...body, hub_token });
    },
    onSuccess: setJob,
  });
  const canRun = body.name !== "" && needed.trim() !== "" && !begin.isPending;
  const field = (key: keyof typeof EMPTY, label: string, example: string, most: number) => (
    <label className="field">
      {label}
      <input
        value={place[key]}
        maxLength={most}
        spellCheck={false}
        autoCapitalize="off"
        placeholder={example}
        onChange={(event) => setPlace({ ...place, [key]: event.target.value })}
      />
    </label>
  );
  return (
    <form
      className="flow"
      aria-label="Register a trained lens"
      onSubmit={(event) => {
        event.preventDefault();
        if (canRun) begin.mutate();
      }}
    >
      <h3>Register a trained lens</h3>
      <p className="quiet">
        A folder of tuned-lens (<code>config.json</code>, <code>params.pt</code>), or a file of jlens.
      </p>
      <label className="field">
        Name
        <input value={name} maxLength={120} placeholder="of the new lens" onChange={(event) => setName(event.target.value)} />
      </label>
      <Segmented label="Where the lens is" options={KINDS} value={source} onChange={setSource} />
      {source === "local" ? (
        field("local_path", "Folder or file on the machine of the service", "/data/lens", 500)
      ) : (
        <>
          <label className="field">
            Kind of the repository
            <select value={type} onChange={(event) => setType(event.target.value as typeof type)}>
              {TYPES.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          {field("repository_id", "Repository", "AlignmentResearch/tuned-lens", 255)}
          {field("file_path", "Folder or file in it", "lens/gpt2", 500)}
          {field("revision", "Branch, tag or commit", "main", 100)}
          <TokenField field={token.field} why="For private and gated repositories." />
        </>
      )}
      <div className="row">
        <button type="submit" disabled={!canRun}>
          {begin.isPending ? "Sending" : "Register"}
        </button>
      </div>
      {begin.error !== null && <ErrorNotice error={begin.error} />}
      {job !== "" && (
        <JobRow
          key={job}
          id={job}
          name="The registration"
          onDone={(ended) => {
            const made = registeredBy(ended);
            setJob("");
            if (made === null) return;
            setName("");
            notify(`The lens ${made.name} is registered.`);
            void client.invalidateQueries({ queryKey: asked.queryKey }).then(() => onRegistered(made.id));
          }}
        />
      )}
      {canRun && <CopyCode sent={describedRegistration(body)} title="This registration as curl or Python" />}
    </form>
  );
}

function said({ kind, layers, model_hint, file_bytes }: TrainedLens): string {
  const span = layers.length === 1 ? "1 layer" : `${layers.length} layers`;
  return [kind, ...(model_hint === null ? [] : [`of ${model_hint}`]), span, bytes(file_bytes)].join(" · ");
}
