// What is loaded, attached and steering now, and since when, on every page.
import { useQuery } from "@tanstack/react-query";
import { attachments, health, models, steering, type Health, type Models, type Steering } from "./api/queries";
import { decimal } from "./rules/bytes";
import { Clock } from "./parts/Moment";

export function ServingStrip() {
  const state = useQuery(health).data;
  const loaded = useQuery(models).data;
  const attached = useQuery(attachments).data;
  const saes = attached?.entries ?? [];
  // without an SAE the service refuses the question
  const steered = useQuery({ ...steering, enabled: saes.length > 0 }).data;
  return (
    <dl className="serving">
      <div>
        <dt>Model</dt>
        <dd>{modelWords(state, loaded)}</dd>
      </div>
      <div>
        <dt>{saes.length === 1 ? "SAE" : "SAEs"}</dt>
        <dd title={saes.map((sae) => `${sae.sae_id} at layer ${sae.layer}`).join("\n")}>
          {attached === undefined ? "–" : saes.length === 0 ? "none" : layers(saes.map((sae) => sae.layer))}
        </dd>
      </div>
      <div data-steers={(saes.length > 0 && isSteering(steered, state)) || undefined}>
        <dt>Steering</dt>
        <dd>{attached?.count === 0 ? "off" : steeringWords(steered, state)}</dd>
      </div>
    </dl>
  );
}

function modelWords(state: Health | undefined, all: Models | undefined) {
  const row = all?.models.find((model) => model.id === all.loaded_model_id);
  if (row === undefined) {
    const busy = all?.models.find((model) => model.status === "loading" || model.status === "unloading");
    if (busy !== undefined) return `${busy.name}, ${busy.status}`;
    return state === undefined && all === undefined ? "–" : "none loaded";
  }
  const facts = [row.dtype ?? row.quantization, row.device].filter((fact) => fact !== null);
  return (
    <>
      <b>{row.name}</b>{" "}
      <span className="quiet wide-only">
        {facts.join(", ")}
        {row.loaded_at !== null && (
          <>
            {" "}
            since <Clock at={row.loaded_at} />
          </>
        )}
      </span>
    </>
  );
}

function layers(numbers: number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  return `${sorted.length === 1 ? "layer" : `${sorted.length} at layers`} ${sorted.join(", ")}`;
}

function isSteering(steered: Steering | undefined, state: Health | undefined): boolean {
  return steered?.enabled === true && (countOf(steered) > 0 || (state?.circuits?.serving ?? 0) > 0);
}

function countOf(steered: Steering): number {
  const maps = [steered.values, ...Object.values(steered.others ?? {})];
  return maps.reduce((sum, values) => sum + Object.values(values).filter((value) => value !== 0).length, 0);
}

function steeringWords(steered: Steering | undefined, state: Health | undefined): string {
  if (steered === undefined) return "–";
  const profile = state?.active_profile;
  const serving = state?.circuits?.serving ?? 0;
  const size = countOf(steered);
  const what = [
    size === 0 ? "" : `${size} ${size === 1 ? "feature" : "features"}`,
    profile ? `${profile.source_kind === "cluster" ? "cluster" : "profile"} ${profile.name} λ ${decimal(profile.intensity)}` : "",
    serving === 0 ? "" : `${serving} ${serving === 1 ? "circuit" : "circuits"}`,
  ].filter((part) => part !== "");
  if (!steered.enabled) return size > 0 ? `off, ${size} kept` : "off";
  return what.length === 0 ? "on, no values" : what.join(", ");
}
