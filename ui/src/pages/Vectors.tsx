// Vectors: stored directions of a model's activations, trained here or read from files of many formats.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { importVector, vectors, type Reading, type Vector } from "../api/vectors";
import { layersSaid } from "../rules/layers";
import { Documents, useOpened } from "./documents/Documents";
import { TrainPanel } from "./training/TrainPanel";
import { ReadingFields, UNSAID } from "./vectors/ReadingFields";
import { VectorDetail } from "./vectors/VectorDetail";

export default function Vectors() {
  const list = useQuery(vectors);
  // a vector steers nobody by itself
  const all = (list.data?.vectors ?? []).map((one) => ({ ...one, is_active: false }));
  const shown = useOpened(all);
  const [reading, setReading] = useState<Reading>(UNSAID);
  const { open } = shown;
  const read = async (file: File) => {
    const done = await importVector(file, reading);
    setReading(UNSAID);
    return done;
  };
  return (
    <Documents
      noun="Vectors"
      lead="Directions of the model's activations: control vectors, persona vectors, refusal directions. They need no SAE."
      list={list}
      all={all}
      {...shown}
      facts={factsOf}
      empty={<p>No vector is stored yet. Train one from texts, or drop the file of one, such as a GGUF control vector or a tensor of PyTorch.</p>}
      detail={(vector) => <VectorDetail key={vector.id} vector={vector} onOpen={open} onDeleted={() => open("")} />}
      before={<TrainPanel kind="vector" />}
      what="a vector"
      accept=".gguf,.safetensors,.pt,.pth,.bin,.svec,.json,.npy"
      read={read}
      fields={<ReadingFields of="vector" reading={reading} onChange={(part) => setReading({ ...reading, ...part })} />}
    />
  );
}

function factsOf({ layers, operation }: Vector): string {
  const words = layersSaid(layers.map(({ layer }) => layer));
  return operation === "project" ? `${words} · projected out` : words;
}
