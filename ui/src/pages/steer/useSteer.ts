// The state of the Steer page: its link, what is loaded, the live values, and the comparison that runs.
import { useCallback, useEffect, useMemo, useRef } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useSearchParams } from "react-router";
import { comparing, useRun, type CompareBody } from "../../api/comparison";
import { answering, editing, type SideRequest } from "../../api/plain";
import { attachments, models } from "../../api/queries";
import { liveInterventions } from "../../api/interventions";
import { liveValues, steeringActions } from "../../api/steer";
import { notifyError } from "../../parts/Notices";
import { useLink } from "../../parts/useLink";
import { abilitiesOf } from "../../rules/abilities";
import type { Asked } from "../../rules/comparison";
import { ApiError } from "../../rules/errors";
import { interventionsOf } from "../../rules/interventions";
import type { Sent } from "../../rules/snippet";
import {
  FEATURES_MAXIMUM,
  isPromptEmpty,
  keyOf,
  listed,
  missing,
  named,
  placed,
  promptOf,
  samplingOf,
  servedName,
  STEER,
  steered,
  type Chosen,
  type Place,
  type SteerState,
} from "../../rules/steer";
import { remember } from "./memory";
import { useServing } from "./useServing";
import { useSettled } from "./useSettled";

const NOWHERE = { sae_id: "", layer: 0 };
/** The actions on the live values of an SAE, by default of the one that is chosen. */
type Actions = (at?: Place) => ReturnType<typeof steeringActions>;
export type Steer = ReturnType<typeof useSteer>;

/** The attached SAE whose features are added and read: the one that the link names, else the first. */
function placeFor<T extends Place>(sae: string, places: readonly T[]): T | null {
  return places.find((entry) => keyOf(entry) === sae) ?? places[0] ?? null;
}

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
  const places = useMemo(() => attached.data?.entries ?? [], [attached.data]);
  const place = placeFor(link.sae, places);
  // its answer has the live values of all SAEs
  const known = place ?? NOWHERE;
  const live = useQuery({ ...liveValues(known), enabled: place !== null });
  const standing = useQuery({ ...liveInterventions, enabled: link.for === "live" });
  /** Whether edits act on the requests of everybody, and the page shows what they do. */
  const isLiveEdited = link.for === "live" && (standing.data?.edits.length ?? 0) > 0;
  const serving = useServing();
  const { phase, isRunning, run: send, stop } = useRun("steer");
  // a link without an SAE is of the one that was attached first
  const sae = link.sae || (places[0] === undefined ? "" : keyOf(places[0]));
  const f = useMemo(() => link.f && placed(link.f, sae), [link.f, sae]);
  const state: SteerState = { ...link, ...text.shown, f };
  const able = model === null ? null : abilitiesOf(model);
  // a model that takes no SAE writes as it is, whatever features the link names
  const takesSaes = attached.data !== undefined && (able === null || able.why === null);
  const lacking = state.for === "page" && takesSaes ? missing(f ?? [], places) : [];
  const canWrite = attached.data !== undefined && able?.writes === true;
  const canRun = model !== null && canWrite && !isPromptEmpty(state) && lacking.length === 0;

  /** The request of a state, with the live values as the service answered them last. */
  const bodyOf = useCallback(
    (of: SteerState, sides?: readonly number[]): CompareBody => {
      const at = placeFor(of.sae, places) ?? NOWHERE;
      const asAnswered = client.getQueryData(liveValues(known).queryKey);
      const features = place === null ? [] : named(steered(of, asAnswered, known));
      const common = { ...promptOf(of), ...samplingOf(of) };
      const edited = interventionsOf(of);
      // live edits have no other form than what steers now, with the live values
      const isStanding = of.for === "live" && isLiveEdited;
      const own = isStanding || features.length === 0 ? {} : { sae_steering: { features } };
      const values = edited === null ? own : { interventions: edited as never };
      const from = { sae_id: at.sae_id, layer: at.layer };
      if (sides !== undefined) {
        const swept = { ...common, ...values, intensities: [...sides] };
        // the tokens of the prompt tell how likely the texts after it are; those of a long prompt would be too many
        const isShort = listed(of, sides.length) > 1;
        return isShort && place !== null ? { ...swept, activations: { ...from, positions: "prompt", top_k: 1 } } : swept;
      }
      const read = { ...from, positions: "all", top_k: listed(of, 2) };
      return { ...common, ...values, activations: read, intensities: isStanding || features.length > 0 ? [0, 1] : [0] };
    },
    [client, places, place, known, isLiveEdited],
  );

  /** What the texts of a state depend on: all of its request but what is read beside them. */
  const askedOf = useCallback(
    (of: SteerState, sides?: readonly number[]): Asked => {
      const interventions = interventionsOf(of);
      if (sides === undefined && interventions !== null) return { model: model?.name, ...promptOf(of), ...samplingOf(of), interventions };
      const { activations: _, intensities, ...asked } = bodyOf(of, sides);
      return { model: model?.name, ...asked, ...(sides === undefined ? {} : { intensities }) };
    },
    [bodyOf, model?.name],
  );

  /** What *Generate* sends: a comparison; with edits a request for each side; without an SAE one for the plain text. */
  const sentOf = (of: SteerState): Sent | readonly SideRequest[] => {
    const edited = interventionsOf(of);
    if (place !== null && edited === null) return comparing(bodyOf(of));
    const { seed, ...rest } = samplingOf(of);
    const sampling = able?.scores === true ? { ...rest, seed } : rest;
    const name = model === null ? "" : servedName(model, loaded.data?.models ?? []);
    return edited === null || able?.why !== null
      ? answering(name, promptOf(of), sampling)
      : editing(name, promptOf(of), sampling, edited);
  };

  /** Begin the comparison, with parts of the state changed. */
  const run = (changed: Partial<SteerState> = {}) => {
    if (!canRun) return;
    const next = { ...state, ...changed };
    text.forget();
    change({ ...text.shown, f, sae: place === null ? state.sae : keyOf(place), ...changed, model: model.name });
    void send(sentOf(next), askedOf(next));
  };
  /** Change parts of the state; with `auto` on, a comparison that was shown begins anew. */
  const alter = (changed: Partial<SteerState>) => {
    if ((changed.f?.length ?? 0) > FEATURES_MAXIMUM) {
      notifyError(new ApiError(`This page steers at most ${FEATURES_MAXIMUM} features at once.`, "TOO_MANY_FEATURES"));
      return;
    }
    if (state.auto && phase !== undefined && canRun) run(changed);
    else change({ f, sae, ...changed });
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
    await action((at = known) => steeringActions(client, at));
    latest.current.alter(changed);
  };
  return {
    ...{ state, latest, change, alter, text, setFeatures, act },
    ...{ model, loaded, attached, places, place, lacking, live, serving },
    isLiveEdited,
    /** Whether the answer of the page has edits beside the values of features. */
    isEdited: able?.why === null && interventionsOf(state) !== null,
    ...{ able, isRunning, canRun, run, stop, bodyOf, sentOf, askedOf },
  };
}
