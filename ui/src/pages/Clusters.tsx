// Clusters: steering documents of a studio. One profile or cluster at a time is active, behind one dial.
import { useQuery } from "@tanstack/react-query";
import { clusters, importClusters } from "../api/documents";
import { watched } from "../api/queries";
import { decimal } from "../rules/bytes";
import { ClusterDetail } from "./clusters/ClusterDetail";
import { Hub } from "./clusters/Hub";
import { Documents, factsOf, useOpened } from "./documents/Documents";

export default function Clusters() {
  const list = useQuery(watched(clusters));
  const all = list.data?.clusters ?? [];
  const shown = useOpened(all);
  const { open } = shown;
  return (
    <Documents
      noun="Clusters"
      lead="Features of one SAE with tuned strengths, behind one dial. One profile or cluster at a time is active, for everyone."
      list={list}
      all={all}
      {...shown}
      facts={({ member_count, layer, intensity }) => factsOf(member_count, layer, "no layer named", decimal(intensity))}
      empty={<p>No cluster is imported yet. Drop the file of a cluster or a bundle, or search a pack on the model hub.</p>}
      detail={(cluster) => <ClusterDetail key={cluster.id} cluster={cluster} onDeleted={() => open("")} />}
      what="a cluster or a bundle"
      read={importClusters}
      after={<Hub onOpen={open} />}
    />
  );
}
