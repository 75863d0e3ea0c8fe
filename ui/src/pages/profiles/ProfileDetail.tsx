// One profile: activate, dial, members, differences to the live values, export, edit, delete.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { described, request } from "../../api/client";
import { dialProfile, exportProfile, labels, type Profile } from "../../api/documents";
import { models } from "../../api/queries";
import { Dial } from "../../parts/Dial";
import { Members } from "../../parts/Members";
import { Clock } from "../../parts/Moment";
import { Panel } from "../../parts/Panel";
import { Active } from "../../parts/Shelf";
import { Warnings } from "../../parts/Warnings";
import { notify } from "../../parts/Notices";
import { Activate } from "../documents/Activate";
import { Edit } from "../documents/Edit";
import { Evidence } from "../documents/Evidence";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";
import { LiveDifference } from "../documents/LiveDifference";
import { useAction, useExport } from "../documents/actions";
import { useCompared } from "../documents/useLive";

const RANGE = [0, 2] as const;

export function ProfileDetail({ profile, onDeleted }: { profile: Profile; onDeleted: () => void }) {
  const { id, name } = profile;
  const path = { profile_id: id };
  const [warnings, setWarnings] = useState<readonly string[]>([]);
  const trained = useQuery(models).data?.models.find((model) => String(model.id) === profile.model_id);
  const compared = useCompared(profile.steering, profile.intensity, profile.sae_id, profile.layer);
  const sae = compared?.sae ?? null;
  const features = Object.entries(profile.steering)
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .map(([index]) => Number(index));
  const named = useQuery(labels(sae?.sae_id ?? profile.sae_id, features)).data ?? new Map<number, string>();
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
  const client = useQueryClient();
  const dial = useAction((intensity: number) => dialProfile(client, id, intensity), {
    onSuccess: (done) => setWarnings(done.warnings),
  });
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
              working={activate.isPending ? "Activating" : end.isPending ? "Deactivating" : null}
              onActivate={() => activate.mutate(undefined)}
              onDeactivate={() => end.mutate(undefined)}
            />
          </>
        }
      >
        {profile.description !== null && <p>{profile.description}</p>}
        <FactList
          facts={[
            ["SAE", profile.sae_id],
            ["Layer", profile.layer ?? "any"],
            ["Model", trained?.name ?? profile.model_id],
            ["Saved", <Clock key="saved" at={profile.updated_at} />],
          ]}
        />
        <Dial name={name} value={profile.intensity} range={RANGE} onCommit={(value) => dial.mutateAsync(value)} />
        {isChanged && (
          <div className="stale">
            <p>The live values were changed since the activation. The dial is saved, and counts with the next activation.</p>
            <button type="button" disabled={isPending} onClick={() => activate.mutate(undefined)}>
              {activate.isPending ? "Activating" : "Activate again"}
            </button>
          </div>
        )}
        <Warnings warnings={warnings.length > 0 ? warnings : profile.warnings} />
        <Members
          intensity={profile.intensity}
          members={features.map((index) => ({
            sae: sae?.sae_id ?? null,
            layer: sae?.layer ?? profile.layer,
            index,
            label: named.get(index) ?? null,
            value: profile.steering[index] ?? 0,
          }))}
        />
        <Foot
          name={name}
          isActive={profile.is_active}
          isPending={isPending}
          isExporting={save.isPending}
          isDeleting={remove.isPending}
          sent={described("post", "/api/profiles/{profile_id}/activate", { path })}
          onExport={() => save.mutate({ id, name })}
          onDelete={() => remove.mutate(undefined)}
        >
          <Edit saved={profile} />
        </Foot>
      </Panel>
      <LiveDifference what={name} intensity={profile.intensity} compared={compared} labels={named} />
      <Evidence key={id} id={id} name={name} />
    </>
  );
}
