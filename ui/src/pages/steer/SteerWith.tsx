// The button at a feature of an open token: steer with it.
import { useQueryClient } from "@tanstack/react-query";
import { feature as asked } from "../../api/steer";
import { notifyUndone } from "../../parts/Notices";
import { beginning, keyOf, liveFeatures, set, type Chosen, type Place } from "../../rules/steer";
import type { TokenFeature } from "../../rules/tokens";
import type { Steer } from "./useSteer";

/** `place` is the SAE that the tokens were read with. The page may add features of another one by now. */
export function SteerWith({ steer, place, feature }: { steer: Steer; place: Place; feature: TokenFeature }) {
  const { state, live } = steer;
  const add = useAdd(steer);
  const name = feature.label ?? `feature ${feature.index}`;
  const there = state.for === "page" ? (state.f ?? []) : liveFeatures(live.data, steer.place ?? place);
  const isThere = there.some(([index, , , sae]) => index === feature.index && sae === keyOf(place));
  if (isThere) return <span className="quiet">steers</span>;
  return (
    <button
      type="button"
      className="small"
      aria-label={`Steer with ${name}`}
      onClick={() => void add(place, [{ index: feature.index }])}
    >
      Steer
    </button>
  );
}

/** Adds features of an SAE: with the values that are given, else with the typical strength of each. */
export function useAdd({ latest, act }: Steer) {
  const client = useQueryClient();
  return async (place: Place, features: readonly { index: number; value?: number }[]) => {
    try {
      const valued = await Promise.all(
        features.map(async ({ index, value }) => {
          if (value !== undefined) return { index, value };
          const { typical_strength } = await client.fetchQuery({ ...asked(place.sae_id, index), retry: false });
          return { index, value: beginning(typical_strength) };
        }),
      );
      const { alter, state } = latest.current;
      const added = valued.map(({ index, value }): Chosen => [index, value, 1, keyOf(place)]);
      if (state.for === "page") alter({ f: added.reduce(set, [...(state.f ?? [])]) });
      else await act((on) => on(place).setAll(Object.fromEntries(valued.map(({ index, value }) => [index, value]))));
    } catch (error) {
      notifyUndone(error, "Nothing was added.");
    }
  };
}
