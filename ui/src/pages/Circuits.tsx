// Circuits: features of several layers that are steered together. Several of them may serve at once.
import { useQuery } from "@tanstack/react-query";
import { circuits, importCircuit, type Circuit } from "../api/documents";
import { DropFiles } from "../parts/DropFiles";
import { Panel, QueryPanel } from "../parts/Panel";
import { Rung } from "../parts/Rung";
import { activeFirst, Shelf } from "../parts/Shelf";
import { useLink } from "../parts/useLink";
import { decimal } from "../rules/bytes";
import { text } from "../rules/link";
import { CircuitDetail } from "./circuits/CircuitDetail";
import { Claims } from "./circuits/Claims";
import { useRefresh } from "./documents/actions";
import "../css/documents.css";

const LINK = { id: text() };

export default function Circuits() {
  const list = useQuery(circuits);
  const [{ id }, change] = useLink(LINK);
  const refresh = useRefresh();
  const all = list.data?.circuits ?? [];
  const opened = all.find((circuit) => circuit.id === id) ?? all.find((circuit) => circuit.is_active) ?? all[0];
  const open = (next: string) => change({ id: next });
  const total = list.data?.total ?? 0;
  return (
    <div className="page">
      <header className="page-head">
        <h1>Circuits</h1>
        <p className="quiet">Features of several layers, steered together by one dial. Circuits on different layers serve at once, for everyone.</p>
      </header>
      <div className="documents">
        <QueryPanel
          className="documents-list"
          title="Imported circuits"
          query={list}
          isEmpty={(data) => data.circuits.length === 0}
          empty={<p>No circuit is imported yet. Drop the file of a circuit that a studio exported.</p>}
          {...(total > all.length ? { about: `The newest ${all.length} of ${total}.` } : {})}
        >
          {() => (
            <Shelf
              label="Circuits"
              selected={opened?.id}
              onSelect={open}
              items={activeFirst(all).map((circuit) => ({
                id: circuit.id,
                name: circuit.name,
                isActive: circuit.is_active,
                facts: (
                  <>
                    <Rung rung={circuit.rung} phrase={circuit.rung_language} />
                    <br />
                    {facts(circuit)}
                  </>
                ),
              }))}
            />
          )}
        </QueryPanel>
        <div className="documents-detail">
          {opened !== undefined && (
            <CircuitDetail
              key={opened.id}
              record={opened}
              isAlone={all.filter((circuit) => circuit.is_active).length === 1}
              onOpen={open}
              onDeleted={() => open("")}
            />
          )}
        </div>
        <div className="documents-more">
          <Claims onOpen={open} />
          <Panel title="Import">
            <DropFiles
              what="a circuit"
              send={async (file) => {
                const done = await importCircuit(file);
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

function facts({ layers, edge_count, intensity, serveable }: Circuit): string {
  return [
    `${layers.length === 1 ? "layer" : "layers"} ${layers.join(", ")}`,
    `${edge_count} ${edge_count === 1 ? "edge" : "edges"}`,
    `λ ${decimal(intensity)}`,
    ...(serveable ? [] : ["SAEs missing"]),
  ].join(" · ");
}
