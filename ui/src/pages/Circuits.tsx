// Circuits: features of several layers that are steered together. Several of them may serve at once.
import { useQuery } from "@tanstack/react-query";
import { circuits, importCircuit, type Circuit } from "../api/documents";
import { watched } from "../api/queries";
import { Rung } from "../parts/Rung";
import { decimal } from "../rules/bytes";
import { CircuitDetail } from "./circuits/CircuitDetail";
import { Claims } from "./circuits/Claims";
import { Documents, useOpened } from "./documents/Documents";

export default function Circuits() {
  const list = useQuery(watched(circuits));
  const all = list.data?.circuits ?? [];
  const shown = useOpened(all);
  const { open } = shown;
  return (
    <Documents
      noun="Circuits"
      lead="Features of several layers, steered together by one dial. Circuits on different layers serve at once, for everyone."
      list={list}
      all={all}
      {...shown}
      facts={(circuit) => (
        <>
          <Rung rung={circuit.rung} phrase={circuit.rung_language} />
          <br />
          {facts(circuit)}
        </>
      )}
      empty={<p>No circuit is imported yet. Drop the file of a circuit that a studio exported.</p>}
      detail={(circuit) => (
        <CircuitDetail
          key={circuit.id}
          record={circuit}
          isAlone={all.filter(({ is_active }) => is_active).length === 1}
          onOpen={open}
          onDeleted={() => open("")}
        />
      )}
      before={<Claims onOpen={open} />}
      what="a circuit"
      read={importCircuit}
    />
  );
}

function facts({ layers, edge_count, intensity, serveable }: Circuit): string {
  return [
    `${layers.length === 1 ? "layer" : "layers"} ${layers.join(", ")}`,
    `${edge_count} ${edge_count === 1 ? "edge" : "edges"}`,
    `λ ${decimal(intensity)}`,
    ...(serveable ? [] : ["SAEs missing"]),
  ].join(" · ");
}
