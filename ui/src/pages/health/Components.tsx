import type { Health } from "../../api/queries";
import { Term } from "../../parts/Term";
import { MEANS } from "../../rules/words";
import { Status } from "../../parts/Status";
import { milliseconds, span } from "../../rules/age";

export function Components({ components, engine }: Pick<Health, "components" | "engine">) {
  return (
    <ul className="lines">
      {components.map(({ name, status, message, latency_ms }) => (
        <li key={name}>
          <span className="strong">{name}</span>
          <Status status={status} />
          <span className="quiet says">
            {message ?? (name === "engine" && engine !== null && <EngineWords engine={engine} />)}
            {latency_ms !== null && `answered in ${milliseconds(latency_ms)}`}
          </span>
        </li>
      ))}
    </ul>
  );
}

function EngineWords({ engine }: { engine: NonNullable<Health["engine"]> }) {
  return (
    <>
      {engine.activity}, last <Term means={MEANS.heartbeat}>heartbeat</Term> {span(engine.silent_seconds)} ago
    </>
  );
}
