import type { Health } from "../../api/queries";
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
            {message ?? (name === "engine" && engine !== null ? engineWords(engine) : "")}
            {latency_ms !== null && `answered in ${milliseconds(latency_ms)}`}
          </span>
        </li>
      ))}
    </ul>
  );
}

function engineWords(engine: NonNullable<Health["engine"]>): string {
  return `${engine.activity}, last sign of life ${span(engine.silent_seconds)} ago`;
}
