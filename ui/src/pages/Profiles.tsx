// Profiles: named sets of steering values. One profile or cluster at a time is active.
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { importProfile, profiles } from "../api/documents";
import { watched } from "../api/queries";
import { decimal } from "../rules/bytes";
import { Documents, factsOf, useOpened } from "./documents/Documents";
import { ProfileDetail } from "./profiles/ProfileDetail";
import { SaveCurrent } from "./profiles/SaveCurrent";

export default function Profiles() {
  const list = useQuery(watched(profiles));
  const all = list.data?.profiles ?? [];
  const manual = all.filter((profile) => profile.source_kind === "manual");
  const shown = useOpened(manual);
  const { open } = shown;
  const others = all.length - manual.length;
  return (
    <Documents
      noun="Profiles"
      lead="Named steering values of one SAE. One profile or cluster at a time is active, for everyone."
      list={list}
      all={manual}
      {...shown}
      facts={({ steering, layer, intensity }) => factsOf(Object.keys(steering).length, layer, "any layer", decimal(intensity))}
      empty={
        <p>
          No profile is saved yet. Set values on the page <Link to="/steer">Steer</Link> and save them here, or drop the file
          of a profile.
        </p>
      }
      about={
        others === 0 ? undefined : (
          <>
            {others === 1 ? "One more is a cluster" : `${others} more are clusters`}: see <Link to="/clusters">Clusters</Link>.
          </>
        )
      }
      detail={(profile) => <ProfileDetail key={profile.id} profile={profile} onDeleted={() => open("")} />}
      before={<SaveCurrent taken={all.map((profile) => profile.name)} onSaved={open} />}
      what="a profile"
      read={importProfile}
    />
  );
}
