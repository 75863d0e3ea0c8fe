// A kept result of a measurement, and the documents that it is evidence for.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { circuits, clusters, profiles } from "../../api/documents";
import { keptEffect, setEvidence, type KeptEffects } from "../../api/effects";
import { Clock } from "../../parts/Moment";
import { notifyError } from "../../parts/Notices";
import { Answered } from "../../parts/Panel";
import { featureOf, leverSaid } from "../../rules/effects";
import { EffectResult } from "./EffectResult";

export function KeptResult({ id, onClose }: { id: string; onClose: () => void }) {
  const query = useQuery(keptEffect(id));
  return (
    <div className="flow">
      <Answered query={query}>
        {({ lever, created_at, digest, evidence_for, result }) => (
          <>
            <p className="quiet">
              The kept measurement of {leverSaid(lever)} at <Clock at={created_at} />, content{" "}
              <code title={digest}>{digest.slice(0, 19)}…</code>.
            </p>
            <EffectResult found={result} place={featureOf(lever)} />
            <Evidence id={id} supported={evidence_for} />
          </>
        )}
      </Answered>
      <div className="row">
        <button type="button" className="small" onClick={onClose}>
          Close the kept measurement
        </button>
      </div>
    </div>
  );
}

function Evidence({ id, supported }: { id: string; supported: KeptEffects["evidence_for"] }) {
  const client = useQueryClient();
  const groups = [
    { name: "Profiles", documents: useQuery(profiles).data?.profiles ?? [] },
    { name: "Clusters", documents: useQuery(clusters).data?.clusters ?? [] },
    { name: "Circuits", documents: useQuery(circuits).data?.circuits ?? [] },
  ];
  const change = useMutation({
    mutationFn: ({ document, isEvidence }: { document: string; isEvidence: boolean }) => setEvidence(id, document, isEvidence),
    onError: notifyError,
    onSettled: () => client.invalidateQueries({ queryKey: ["effects"] }),
  });
  const isThere = (document: string) => supported.some((one) => one.id === document);
  return (
    <section className="flow" aria-label="Evidence for">
      <h3>Evidence for</h3>
      {supported.length === 0 ? (
        <p className="quiet">No profile, cluster or circuit yet. Evidence changes no rung.</p>
      ) : (
        <ul className="lines" aria-label="Documents that it is evidence for">
          {supported.map(({ id: document, kind, name }) => (
            <li key={document}>
              <span className="strong">{name}</span>
              <span className="says quiet">{kind}</span>
              <button
                type="button"
                className="small"
                aria-label={`Remove the evidence for ${name}`}
                disabled={change.isPending}
                onClick={() => change.mutate({ document, isEvidence: false })}
              >
                Remove
              </button>
            </li>
          ))}
        </ul>
      )}
      <label className="field">
        Make it evidence for
        <select
          value=""
          disabled={change.isPending}
          onChange={(event) => change.mutate({ document: event.target.value, isEvidence: true })}
        >
          <option value="">choose a document</option>
          {groups.map(({ name, documents }) => (
            <optgroup key={name} label={name}>
              {documents
                .filter(({ id: document }) => !isThere(document))
                .map((one) => (
                  <option key={one.id} value={one.id}>
                    {one.name}
                  </option>
                ))}
            </optgroup>
          ))}
        </select>
      </label>
    </section>
  );
}
