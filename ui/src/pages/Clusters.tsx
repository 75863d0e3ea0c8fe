// Clusters: steering documents of a studio. One profile or cluster at a time is active, behind one dial.
import { useQuery } from "@tanstack/react-query";
import { clusters, importClusters } from "../api/documents";
import { DropFiles } from "../parts/DropFiles";
import { Panel, QueryPanel } from "../parts/Panel";
import { activeFirst, Shelf } from "../parts/Shelf";
import { useLink } from "../parts/useLink";
import { decimal } from "../rules/bytes";
import { text } from "../rules/link";
import { ClusterDetail } from "./clusters/ClusterDetail";
import { Hub } from "./clusters/Hub";
import { useRefresh } from "./documents/actions";
import "../css/documents.css";

const LINK = { id: text() };

export default function Clusters() {
  const list = useQuery(clusters);
  const [{ id }, change] = useLink(LINK);
  const refresh = useRefresh();
  const all = list.data?.clusters ?? [];
  const opened = all.find((cluster) => cluster.id === id) ?? all.find((cluster) => cluster.is_active) ?? all[0];
  const open = (next: string) => change({ id: next });
  return (
    <div className="page">
      <header className="page-head">
        <h1>Clusters</h1>
        <p className="quiet">Features of one SAE with tuned strengths, behind one dial. One profile or cluster at a time is active, for everyone.</p>
      </header>
      <div className="documents">
        <QueryPanel
          className="documents-list"
          title="Imported clusters"
          query={list}
          isEmpty={(data) => data.clusters.length === 0}
          empty={<p>No cluster is imported yet. Drop the file of a cluster or a bundle, or search a pack on the model hub.</p>}
        >
          {() => (
            <Shelf
              label="Clusters"
              selected={opened?.id}
              onSelect={open}
              items={activeFirst(all).map((cluster) => ({
                id: cluster.id,
                name: cluster.name,
                isActive: cluster.is_active,
                facts: facts(cluster.member_count, cluster.layer, cluster.intensity),
              }))}
            />
          )}
        </QueryPanel>
        <div className="documents-detail">
          {opened !== undefined && <ClusterDetail key={opened.id} cluster={opened} onDeleted={() => open("")} />}
        </div>
        <div className="documents-more">
          <Panel title="Import">
            <DropFiles
              what="a cluster or a bundle"
              send={async (file) => {
                const done = await importClusters(file);
                await refresh();
                return done;
              }}
              onOpen={open}
            />
          </Panel>
          <Hub onOpen={open} />
        </div>
      </div>
    </div>
  );
}

function facts(size: number, layer: number | null, intensity: number): string {
  const features = `${size} ${size === 1 ? "feature" : "features"}`;
  return [features, layer === null ? "no layer named" : `layer ${layer}`, `λ ${decimal(intensity)}`].join(" · ");
}
