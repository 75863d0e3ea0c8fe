// The kept measurements that are evidence for a profile, a cluster or a circuit.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { evidenceFor } from "../../api/effects";
import { Clock } from "../../parts/Moment";
import { QueryPanel } from "../../parts/Panel";
import { measurementSaid } from "../../rules/effects";
import { KeptResult } from "../features/KeptResult";
import "../../css/effects.css";

export function Evidence({ id, name }: { id: string; name: string }) {
  const query = useQuery(evidenceFor(id));
  const [shown, show] = useState("");
  return (
    <QueryPanel
      title="Evidence"
      query={query}
      about={`Kept measurements that somebody made evidence for ${name}. They change no rung.`}
      isEmpty={(rows) => rows.length === 0}
      empty={
        <p>
          No measurement is evidence for it. <Link to="/features">Measure what a feature does</Link>, open the kept measurement,
          and choose {name} there.
        </p>
      }
    >
      {(rows) => (
        <>
          <ul className="lines" aria-label="Measurements that are evidence">
            {rows.map((one) => (
              <li key={one.id} aria-current={one.id === shown || undefined}>
                <span className="strong">
                  <Clock at={one.created_at} />
                </span>
                <span className="says quiet">{measurementSaid(one)}</span>
                <button
                  type="button"
                  className="small"
                  aria-label={`Open the measurement ${one.id}`}
                  onClick={() => show(one.id)}
                >
                  Open
                </button>
              </li>
            ))}
          </ul>
          {rows.some(({ id: kept }) => kept === shown) && <KeptResult key={shown} id={shown} onClose={() => show("")} />}
        </>
      )}
    </QueryPanel>
  );
}
