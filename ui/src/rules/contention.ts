// What the service says where a circuit cannot be served beside another one, read from the details of its refusal.
import { isRecord } from "./errors";

export interface Contention {
  /** The circuits that hold layers, with the layers. */
  holders: { id: string; name: string; layers: number[] }[];
  /** The features that both circuits steer. Nothing overrides a refusal that has any. */
  collisions: { layer: number; feature: number; name: string }[];
  isOverridable: boolean;
  /** What was measured of such a combination, as names and sentences of the service. */
  measured: [name: string, says: string][];
}

export function contention(details: Record<string, unknown>): Contention {
  return {
    holders: records(details["all_incumbents"]).map(({ id, name, layers }) => ({
      id: String(id),
      name: String(name),
      layers: Array.isArray(layers) ? layers.map(Number) : [],
    })),
    collisions: records(details["colliding_keys"]).map(({ layer, feature_idx, incumbent }) => ({
      layer: Number(layer),
      feature: Number(feature_idx),
      name: isRecord(incumbent) ? String(incumbent["name"]) : "",
    })),
    isOverridable: details["overridable"] === true,
    measured: Object.entries(isRecord(details["measured_hazard"]) ? details["measured_hazard"] : {}).map(
      ([name, says]) => [name.replaceAll("_", " "), String(says)],
    ),
  };
}

function records(value: unknown): Record<string, unknown>[] {
  return Array.isArray(value) ? value.filter(isRecord) : [];
}
