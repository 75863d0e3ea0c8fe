// The kept results of measurements: those of this feature, and those of other levers.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { keptEffects, removeEffects, type KeptEffects } from "../../api/effects";
import { Confirm } from "../../parts/Confirm";
import { Clock } from "../../parts/Moment";
import { notifyError } from "../../parts/Notices";
import { Answered } from "../../parts/Panel";
import { count } from "../../rules/bytes";
import { featureOf, leverSaid, measurementSaid, type EffectPlace } from "../../rules/effects";

type Open = { shown: string; onShow: (id: string) => void };

export function Kept({ place, shown, onShow }: Open & { place: EffectPlace }) {
  const query = useQuery(keptEffects);
  const isHere = ({ lever }: KeptEffects) => {
    const found = featureOf(lever);
    return found !== null && found.sae === place.sae && found.layer === place.layer && found.index === place.index;
  };
  return (
    <section className="flow" aria-label="Kept measurements">
      <h3>Kept measurements</h3>
      <Answered query={query} isEmpty={(all) => all.length === 0} empty={<p>A measurement is kept here when it is done.</p>}>
        {(all) => {
          const [own, others] = [all.filter(isHere), all.filter((one) => !isHere(one))];
          return (
            <>
              {own.length === 0 && <p className="quiet">None of this feature.</p>}
              <Rows label="Kept measurements of this feature" rows={own} shown={shown} onShow={onShow} />
              {others.length > 0 && (
                <details>
                  <summary>
                    {count(others.length)} of {others.length === 1 ? "another lever" : "other levers"}
                  </summary>
                  <Rows label="Kept measurements of other levers" rows={others} shown={shown} onShow={onShow} />
                </details>
              )}
            </>
          );
        }}
      </Answered>
    </section>
  );
}

function Rows({ label, rows, shown, onShow }: Open & { label: string; rows: readonly KeptEffects[] }) {
  const client = useQueryClient();
  const [asked, ask] = useState<KeptEffects | null>(null);
  const remove = useMutation({
    mutationFn: removeEffects,
    onError: notifyError,
    onSuccess: (_, id) => {
      if (id === shown) onShow("");
    },
    onSettled: () => client.invalidateQueries({ queryKey: keptEffects.queryKey }),
  });
  if (rows.length === 0) return null;
  return (
    <>
      <ul className="lines" aria-label={label}>
        {rows.map((one) => (
          <li key={one.id} aria-current={one.id === shown || undefined}>
            <span className="strong">
              <Clock at={one.created_at} />
            </span>
            <span className="says quiet">{measurementSaid(one, one.evidence_for)}</span>
            <button type="button" className="small" aria-label={`Open the measurement ${one.id}`} onClick={() => onShow(one.id)}>
              Open
            </button>
            <button
              type="button"
              className="small danger"
              aria-label={`Delete the measurement ${one.id}`}
              disabled={remove.isPending}
              onClick={() => ask(one)}
            >
              Delete
            </button>
          </li>
        ))}
      </ul>
      <Confirm
        title="Delete the measurement?"
        action="Delete"
        isDangerous
        isOpen={asked !== null}
        onConfirm={() => asked !== null && remove.mutate(asked.id)}
        onClose={() => ask(null)}
      >
        <p>
          The measurement of {asked === null ? "" : leverSaid(asked.lever)} is deleted for everyone
          {asked !== null && asked.evidence_for.length > 0 && (
            <>, and is no longer evidence for {asked.evidence_for.map(({ name }) => name).join(", ")}</>
          )}
          .
        </p>
      </Confirm>
    </>
  );
}
