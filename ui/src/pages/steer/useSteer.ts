// The state of the Steer page: its link, what is loaded, the live values, and the comparison that runs.
import { useCallback, useEffect, useMemo, useRef } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useSearchParams } from "react-router";
import { useRun, type CompareBody } from "../../api/comparison";
import { attachments, models } from "../../api/queries";
import { liveValues, steeringActions } from "../../api/steer";
import { useLink } from "../../parts/useLink";
import {
  base,
  isPromptEmpty,
  keyOf,
  listed,
  promptOf,
  samplingOf,
  STEER,
  steers,
  type Chosen,
  type SteerState,
} from "../../rules/steer";
import { remember } from "./memory";
import { useServing } from "./useServing";
import { useSettled } from "./useSettled";

const NOWHERE = { sae_id: "", layer: 0 };
type Actions = ReturnType<typeof steeringActions>;
export type Steer = ReturnType<typeof useSteer>;

export function useSteer() {
  const client = useQueryClient();
  const [query] = useSearchParams();
  const [link, change] = useLink(STEER);
  const text = useSettled(
    useMemo(() => ({ prompt: link.prompt, chat: link.chat }), [link.prompt, link.chat]),
    change,
  );
  useEffect(() => remember(query.toString()), [query]);

  const loaded = useQuery(models);
  const attached = useQuery(attachments);
  const model = loaded.data?.models.find(({ id }) => id === loaded.data.loaded_model_id) ?? null;
  const places = attached.data?.entries ?? [];
  const place = places.find((entry) => keyOf(entry) === link.sae) ?? places[0] ?? null;
  const live = useQuery({ ...liveValues(place ?? NOWHERE), enabled: place !== null });
  const serving = useServing();
  const { phase, isRunning, run: send, stop } = useRun("steer");
  const state: SteerState = { ...link, ...text.shown };
  const canRun = model !== null && place !== null && !isPromptEmpty(state);

  /** The request of a state, with the live values as the service answered them last. */
  const bodyOf = useCallback(
    (of: SteerState, sides?: readonly number[]): CompareBody => {
      const now = client.getQueryData(liveValues(place ?? NOWHERE).queryKey);
      const { one, body } = base(of, place ?? NOWHERE, now, serving?.intensity ?? 1);
      const isSteered = steers(of, now);
      const common = { ...promptOf(of), ...samplingOf(of) };
      if (sides !== undefined) {
        const scaled = sides.map((side) => Math.min(2, side * one));
        return { ...common, ...body, intensities: [...new Set(scaled)] };
      }
      const read = { sae_id: place?.sae_id, layer: place?.layer, positions: "all", top_k: listed(of, 2) };
      const both = { ...common, activations: read };
      return isSteered && one !== 0 ? { ...both, ...body, intensities: [0, one] } : { ...both, intensities: [0] };
    },
    [client, place, serving?.intensity],
  );

  /** Begin the comparison, with parts of the state changed. */
  const run = (changed: Partial<SteerState> = {}) => {
    if (!canRun) return;
    const next = { ...state, ...changed };
    text.forget();
    change({ ...text.shown, ...changed, model: model.name, sae: keyOf(place) });
    void send(bodyOf(next));
  };
  /** Change parts of the state; with `auto` on, a comparison that was shown begins anew. */
  const alter = (changed: Partial<SteerState>) => {
    if (state.auto && phase !== undefined && canRun) run(changed);
    else change(changed);
  };
  const setFeatures = (f: readonly Chosen[]) => alter({ f });
  // what goes on after an answer of the service uses the state of that moment
  const latest = useRef({ alter, state });
  useEffect(() => {
    latest.current = { alter, state };
  });
  /** Change the live values, then compare anew. What runs is stopped first, because a change would refuse it. */
  const act = async (action: (on: Actions) => Promise<unknown>, changed: Partial<SteerState> = {}) => {
    if (isRunning) stop();
    await action(steeringActions(client, place ?? NOWHERE));
    latest.current.alter(changed);
  };
  return {
    ...{ state, latest, change, alter, text, setFeatures, act },
    ...{ model, loaded, attached, places, place, live, serving },
    ...{ isRunning, canRun, run, stop, bodyOf },
  };
}
