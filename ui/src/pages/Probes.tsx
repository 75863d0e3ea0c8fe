// Probes: linear classifiers of a model's activations, trained here or read from files of other tools.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { importProbe, probes, type Probe } from "../api/probes";
import type { Reading } from "../api/vectors";
import { decimal } from "../rules/bytes";
import { layersSaid } from "../rules/layers";
import { Documents, useOpened } from "./documents/Documents";
import { ProbeDetail } from "./probes/ProbeDetail";
import { TrainPanel } from "./training/TrainPanel";
import { ReadingFields, UNSAID } from "./vectors/ReadingFields";

export default function Probes() {
  const list = useQuery(probes);
  // a probe only reads
  const all = (list.data?.probes ?? []).map((one) => ({ ...one, is_active: false }));
  const shown = useOpened(all);
  const [said, setSaid] = useState<Reading>(UNSAID);
  const { open } = shown;
  const read = async (file: File) => {
    const done = await importProbe(file, said);
    setSaid(UNSAID);
    return done;
  };
  return (
    <Documents
      noun="Probes"
      lead="Linear classifiers of the model's activations. They read each token of an answer, and conditions of edits ask them."
      list={list}
      all={all}
      {...shown}
      facts={factsOf}
      empty={<p>No probe is stored yet. Train one from texts, or drop the file of one.</p>}
      detail={(probe) => <ProbeDetail key={probe.id} probe={probe} onDeleted={() => open("")} />}
      before={<TrainPanel kind="probe" />}
      what="a probe"
      accept=".safetensors,.pt,.pth,.bin,.npz,.npy,.json"
      read={read}
      fields={<ReadingFields of="probe" reading={said} onChange={(part) => setSaid({ ...said, ...part })} />}
    />
  );
}

function factsOf({ layers, training }: Probe): string {
  const words = layersSaid(layers.map(({ layer }) => layer));
  const best = training?.layers.find(({ layer }) => layer === training.best_layer);
  return best === undefined || best.auc_held_out === null
    ? words
    : `${words} · AUC ${decimal(best.auc_held_out)} at layer ${best.layer}`;
}
