// The button at a feature of an open token: steer with it.
import { useQueryClient } from "@tanstack/react-query";
import { feature as asked } from "../../api/steer";
import { notifyError } from "../../parts/Notices";
import { beginning, set, type Chosen } from "../../rules/steer";
import type { TokenFeature } from "../../rules/tokens";
import type { Steer } from "./useSteer";

export function SteerWith({ steer, feature }: { steer: Steer; feature: TokenFeature }) {
  const add = useAdd(steer);
  const name = feature.label ?? `feature ${feature.index}`;
  const isThere =
    steer.state.for === "page"
      ? (steer.state.f ?? []).some(([index]) => index === feature.index)
      : steer.live.data?.values[feature.index] !== undefined;
  if (isThere) return <span className="quiet">steers</span>;
  return (
    <button
      type="button"
      className="small"
      aria-label={`Steer with ${name}`}
      onClick={() => void add([{ index: feature.index }])}
    >
      Steer
    </button>
  );
}

/** Adds features: with the values that are given, else with the typical strength of each. */
export function useAdd({ latest, place, act }: Steer) {
  const client = useQueryClient();
  return async (features: readonly { index: number; value?: number }[]) => {
    if (place === null) return;
    try {
      const valued = await Promise.all(
        features.map(async ({ index, value }) => {
          if (value !== undefined) return { index, value };
          const { typical_strength } = await client.fetchQuery(asked(place.sae_id, index));
          return { index, value: beginning(typical_strength) };
        }),
      );
      const { alter, state } = latest.current;
      const add = (all: Chosen[], { index, value }: (typeof valued)[number]) => set(all, index, value);
      if (state.for === "page") alter({ f: valued.reduce(add, [...(state.f ?? [])]) });
      else await act((on) => on.setAll(Object.fromEntries(valued.map(({ index, value }) => [index, value]))));
    } catch (error) {
      notifyError(error);
    }
  };
}
