// One recorded answer: its texts, what it was made from, and the comparison with the same answer made again.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { removeRun, replay, replaying, run as asked, type Run } from "../../api/runs";
import { Confirm } from "../../parts/Confirm";
import { Copy } from "../../parts/Copy";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Clock } from "../../parts/Moment";
import { notifyError } from "../../parts/Notices";
import { Answered, Panel } from "../../parts/Panel";
import { count } from "../../rules/bytes";
import { sentence } from "../../rules/editWords";
import { featurePath, placeName } from "../../rules/places";
import { editsOf, kindOf, saidIn, valuesOf } from "../../rules/runs";
import { FactList } from "../documents/FactList";
import { useNames } from "../steer/edits/useNames";
import { Verdict } from "./Verdict";

export function RunDetail({ id, onDeleted }: { id: string; onDeleted: () => void }) {
  const query = useQuery(asked(id));
  return <Answered query={query}>{(run) => <Whole run={run} onDeleted={onDeleted} />}</Answered>;
}

function Whole({ run, onDeleted }: { run: Run; onDeleted: () => void }) {
  const id = run.request_id;
  const client = useQueryClient();
  const again = useMutation({ mutationFn: () => replay(id) });
  const remove = useMutation({
    mutationFn: () => removeRun(id),
    onError: notifyError,
    onSuccess: onDeleted,
    onSettled: () => client.invalidateQueries({ queryKey: ["runs", "list"] }),
  });
  const [isAsking, setAsking] = useState(false);
  return (
    <>
      <Panel
        title={id}
        actions={
          <>
            <Copy text={id} label="Copy the id" />
            <button type="button" className="small danger" disabled={remove.isPending} onClick={() => setAsking(true)}>
              Delete
            </button>
            <button type="button" className="primary" disabled={again.isPending} onClick={() => again.mutate()}>
              {again.isPending ? "Writing" : "Make it again"}
            </button>
          </>
        }
        about="It is sent to the loaded model again, with its seed and its own steering. What steers now stays as it is."
      >
        {again.error !== null && <ErrorNotice error={again.error} />}
        {again.data !== undefined && <Verdict replayed={again.data} />}
        <CopyCode sent={replaying(id)} title="Make it again with curl or Python" />
        <Confirm
          title="Delete this run?"
          action="Delete"
          isDangerous
          isOpen={isAsking}
          onConfirm={() => remove.mutate()}
          onClose={() => setAsking(false)}
        >
          <p>
            <b>{id}</b> is deleted, and cannot be made again. Export it first if you may need it.
          </p>
        </Confirm>
      </Panel>
      <Panel title="Request and answer">
        <ol className="run-said" aria-label="Request">
          {saidIn(run.body).map(({ role, text }, at) => (
            <li key={at}>
              <span className="quiet">{role ?? "prompt"}</span>
              <p>{text}</p>
            </li>
          ))}
        </ol>
        <ol className="run-said run-answer" aria-label="Answer">
          {run.choices.map(({ text, finish_reason, tokens, scores }, at) => (
            <li key={at}>
              <span className="quiet">
                {run.choices.length > 1 ? `answer ${at + 1}` : "answer"}, {count(tokens)} {tokens === 1 ? "token" : "tokens"}
                {finish_reason !== null && `, ended by ${finish_reason}`}
                {scores !== null && `, ${count(scores.length)} scores`}
              </span>
              <p>{text}</p>
            </li>
          ))}
        </ol>
      </Panel>
      <Steered run={run} />
      <Panel title="What it was made from">
        <Made run={run} />
        <details>
          <summary>The whole record</summary>
          <pre tabIndex={0} role="group" aria-label="The record as JSON">
            <code>{JSON.stringify(run, null, 1)}</code>
          </pre>
        </details>
      </Panel>
    </>
  );
}

function Steered({ run: { steering, saes, body } }: { run: Run }) {
  const { state, sources, edits, changed } = steering;
  const own = edits === null ? [] : editsOf(body);
  const names = useNames(own);
  if (state === null) return <Panel title="Steering">{<p className="empty">Nothing steered this answer.</p>}</Panel>;
  return (
    <Panel title="Steering">
      <FactList
        facts={[
          ["from", sources.join(", ") || null],
          ["digest", <code key="state">{state}</code>],
          ["length kept", steering.preserve_norm ? "yes" : null],
          ["edits", edits === null || own.length > 0 ? null : `those of ${sources.join(", ")}, which the record has`],
        ]}
      />
      {own.length > 0 && (
        <ol className="lines" aria-label="Edits">
          {own.map((edit, at) => (
            <li key={at}>{sentence(edit, names)}</li>
          ))}
        </ol>
      )}
      {changed && <p className="stale">An operator changed the steering while this answer was written.</p>}
      <ul className="lines" aria-label="Features">
        {valuesOf(steering.values).flatMap(({ key, features }) => {
          const sae = saes.find((one) => one.key === key);
          return features.map(({ index, value }) => (
            <li key={`${key} ${index}`}>
              {sae === undefined ? (
                <code>{`${key}:${index}`}</code>
              ) : (
                <Link to={featurePath({ sae: sae.sae_id, layer: sae.layer, index })}>{placeName(sae.layer, index)}</Link>
              )}
              <span className="says quiet">{sae?.sae_id}</span>
              <span className="numbers">{value}</span>
            </li>
          ));
        })}
      </ul>
    </Panel>
  );
}

function Made({ run }: { run: Run }) {
  const { model, machine, settings, saes, seed } = run;
  return (
    <FactList
      facts={[
        ["written", <Clock key="at" at={run.created_at} />],
        ["kind", kindOf(run.route)],
        ["model", model.name],
        ["repository", model.repository_id],
        ["commit", model.revision],
        ["content", model.content_digest === null ? null : <code key="digest">{model.content_digest}</code>],
        ["precision", [model.quantization, model.dtype].filter((one) => one !== null).join(", ")],
        ["SAEs", saes.map(({ sae_id, layer }) => `${sae_id} at layer ${layer}`).join(", ") || "none"],
        ["seed", seed === null ? "none" : `${seed}${run.seed_chosen ? ", chosen by the service" : ""}`],
        ["prompt tokens", run.prompt_tokens.map((tokens) => count(tokens)).join(", ")],
        ["machine", [machine.device, machine.processor].filter((one) => one !== "").join(", ")],
        ["versions", Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ")],
        ["continuous batching", settings.continuous_batching ? "on" : null],
      ]}
    />
  );
}
