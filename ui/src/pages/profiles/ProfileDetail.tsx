// One profile: activate, dial, members, differences to the live values, export, edit, delete.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { described, request } from "../../api/client";
import { exportProfile, labels, type Profile } from "../../api/documents";
import { steering } from "../../api/queries";
import { Dial } from "../../parts/Dial";
import { Members } from "../../parts/Members";
import { Panel } from "../../parts/Panel";
import { Active } from "../../parts/Shelf";
import { useNow } from "../../parts/useNow";
import { Warnings } from "../../parts/Warnings";
import { notify } from "../../parts/Notices";
import { clock } from "../../rules/age";
import { differences, liveAt } from "../../rules/values";
import { Activate } from "../documents/Activate";
import { Edit } from "../documents/Edit";
import { Facts } from "../documents/Facts";
import { Foot } from "../documents/Foot";
import { LiveDifference } from "../documents/LiveDifference";
import { useAction, useExport } from "../documents/actions";
import { useAttached, useCompared } from "../documents/useLive";

const RANGE = [0, 2] as const;

export function ProfileDetail({ profile, onDeleted }: { profile: Profile; onDeleted: () => void }) {
  const { id, name } = profile;
  const path = { profile_id: id };
  const now = useNow();
  const [warnings, setWarnings] = useState<readonly string[]>([]);
  const compared = useCompared(profile.steering, profile.intensity, profile.sae_id, profile.layer);
  const features = Object.entries(profile.steering)
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .map(([index]) => Number(index));
  const named = useQuery(labels(compared?.sae.sae_id ?? profile.sae_id, features)).data ?? new Map<number, string>();
  const activate = useAction(() => request("post", "/api/profiles/{profile_id}/activate", { path }), {
    onSuccess: (done) => setWarnings(done.warnings),
  });
  const end = useAction(() => request("post", "/api/profiles/{profile_id}/deactivate", { path }), {
    onSuccess: () => setWarnings([]),
  });
  const remove = useAction(() => request("delete", "/api/profiles/{profile_id}", { path }), {
    onSuccess: () => {
      notify(`The profile ${name} is deleted.`);
      onDeleted();
    },
  });
  const dial = useDial(profile, setWarnings);
  const save = useExport("profile", exportProfile);
  const isPending = activate.isPending || end.isPending || remove.isPending;
  const isChanged = profile.is_active && (compared?.differences.length ?? 0) > 0;
  return (
    <>
      <Panel
        title={name}
        actions={
          <>
            {profile.is_active && <Active />}
            <Activate
              name={name}
              isActive={profile.is_active}
              isPending={isPending}
              onActivate={() => activate.mutate(undefined)}
              onDeactivate={() => end.mutate(undefined)}
            />
          </>
        }
      >
        {profile.description !== null && <p>{profile.description}</p>}
        <Facts
          facts={[
            ["SAE", profile.sae_id],
            ["Layer", profile.layer ?? "any"],
            ["Model", profile.model_id],
            ["Saved", clock(profile.updated_at, now)],
          ]}
        />
        <Dial name={name} value={profile.intensity} range={RANGE} onCommit={(value) => dial.mutateAsync(value)} />
        {isChanged && (
          <div className="stale">
            <p>The live values were changed since the activation. The dial is saved, and counts with the next activation.</p>
            <button type="button" disabled={isPending} onClick={() => activate.mutate(undefined)}>
              Activate again
            </button>
          </div>
        )}
        <Warnings warnings={warnings} />
        <Members
          intensity={profile.intensity}
          members={features.map((index) => ({
            layer: profile.layer,
            index,
            label: named.get(index) ?? null,
            value: profile.steering[index] ?? 0,
          }))}
        />
        <Foot
          name={name}
          isActive={profile.is_active}
          isPending={isPending}
          sent={described("post", "/api/profiles/{profile_id}/activate", { path })}
          onExport={() => save.mutate({ id, name })}
          onDelete={() => remove.mutate(undefined)}
        >
          <Edit saved={profile} />
        </Foot>
      </Panel>
      <LiveDifference what={name} intensity={profile.intensity} compared={compared} labels={named} />
    </>
  );
}

/** Saves an intensity. An active profile steers by it at once, unless somebody changed the live values meanwhile. */
function useDial(profile: Profile, tell: (warnings: readonly string[]) => void) {
  const client = useQueryClient();
  const { entries, sae } = useAttached(profile.sae_id, profile.layer);
  const path = { profile_id: profile.id };
  return useAction(async (intensity: number) => {
    const live = profile.is_active && sae !== null ? await client.fetchQuery({ ...steering, staleTime: 0 }) : null;
    const follows =
      live !== null &&
      sae !== null &&
      differences(profile.steering, profile.intensity, liveAt(live, entries, sae)).length === 0;
    await request("patch", "/api/profiles/{profile_id}", { path, body: { intensity } });
    if (follows) tell((await request("post", "/api/profiles/{profile_id}/activate", { path })).warnings);
  });
}
