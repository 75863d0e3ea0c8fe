// Profiles: named sets of steering values. One profile or cluster at a time is active.
import { Link } from "react-router";
import { useQuery } from "@tanstack/react-query";
import { importProfile, profiles } from "../api/documents";
import { DropFiles } from "../parts/DropFiles";
import { Panel, QueryPanel } from "../parts/Panel";
import { activeFirst, Shelf } from "../parts/Shelf";
import { useLink } from "../parts/useLink";
import { decimal } from "../rules/bytes";
import { text } from "../rules/link";
import { useRefresh } from "./documents/actions";
import { ProfileDetail } from "./profiles/ProfileDetail";
import { SaveCurrent } from "./profiles/SaveCurrent";
import "../css/documents.css";

const LINK = { id: text() };

export default function Profiles() {
  const list = useQuery(profiles);
  const [{ id }, change] = useLink(LINK);
  const refresh = useRefresh();
  const all = list.data?.profiles ?? [];
  const manual = all.filter((profile) => profile.source_kind === "manual");
  const opened = manual.find((profile) => profile.id === id) ?? manual.find((profile) => profile.is_active) ?? manual[0];
  const others = all.length - manual.length;
  const open = (next: string) => change({ id: next });
  return (
    <div className="page">
      <header className="page-head">
        <h1>Profiles</h1>
        <p className="quiet">Named steering values of one SAE. One profile or cluster at a time is active, for everyone.</p>
      </header>
      <div className="documents">
        <QueryPanel
          className="documents-list"
          title="Saved profiles"
          query={list}
          isEmpty={() => manual.length === 0}
          empty={
            <p>
              No profile is saved yet. Set values on the page <Link to="/steer">Steer</Link> and save them here, or drop the file
              of a profile.
            </p>
          }
          {...(others > 0
            ? { about: <>{others === 1 ? "One more is a cluster" : `${others} more are clusters`}: see <Link to="/clusters">Clusters</Link>.</> }
            : {})}
        >
          {() => (
            <Shelf
              label="Profiles"
              selected={opened?.id}
              onSelect={open}
              items={activeFirst(manual).map((profile) => ({
                id: profile.id,
                name: profile.name,
                isActive: profile.is_active,
                facts: facts(Object.keys(profile.steering).length, profile.layer, profile.intensity),
              }))}
            />
          )}
        </QueryPanel>
        <div className="documents-detail">
          {opened !== undefined && <ProfileDetail key={opened.id} profile={opened} onDeleted={() => open("")} />}
        </div>
        <div className="documents-more">
          <SaveCurrent taken={all.map((profile) => profile.name)} onSaved={open} />
          <Panel title="Import">
            <DropFiles
              what="a profile"
              send={async (file) => {
                const done = await importProfile(file);
                await refresh();
                return done;
              }}
              onOpen={open}
            />
          </Panel>
        </div>
      </div>
    </div>
  );
}

function facts(size: number, layer: number | null, intensity: number): string {
  const features = `${size} ${size === 1 ? "feature" : "features"}`;
  return [features, layer === null ? "any layer" : `layer ${layer}`, `λ ${decimal(intensity)}`].join(" · ");
}
