// One vector: where it comes from, how long it is at each layer, and what it is near to.
import { useMutation } from "@tanstack/react-query";
import { Link } from "react-router";
import { described, request } from "../../api/client";
import { exportVector, FORMATS, type Format, type Vector } from "../../api/vectors";
import { LayerBars } from "../../parts/LayerBars";
import { Clock } from "../../parts/Moment";
import { notify, notifyError } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { saveFile } from "../../parts/saveFile";
import { fileName } from "../../rules/document";
import { bestLayer, sentEdits, vectorEdit, vectorPath } from "../../rules/edits";
import { layersSaid } from "../../rules/layers";
import { signed } from "../../rules/strength";
import { FactList } from "../documents/FactList";
import { Foot } from "../documents/Foot";
import { useAction } from "../documents/actions";
import { Trained } from "../training/Trained";
import { VectorNeighbours } from "./VectorNeighbours";
import { VectorWrites } from "./VectorWrites";
import { WhatItDoes } from "./WhatItDoes";

const NAMES: Record<Format, string> = { gguf: "GGUF", safetensors: "safetensors", json: "JSON" };

export function VectorDetail({
  vector,
  onOpen,
  onDeleted,
}: {
  vector: Vector;
  onOpen: (id: string) => void;
  onDeleted: () => void;
}) {
  const { id, name, layers, source } = vector;
  const sites = [...new Set(layers.map(({ site }) => site))];
  const remove = useAction(() => request("delete", "/api/vectors/{vector_id}", { path: { vector_id: id } }), {
    onSuccess: () => {
      notify(`The vector ${name} is deleted.`);
      onDeleted();
    },
  });
  const save = useMutation({
    mutationFn: async (format: Format) =>
      saveFile(
        format === "json" ? fileName(name, "vector") : fileName(name, "vector").replace(/\.vector\.json$/, `.${format}`),
        await exportVector(id, format),
      ),
    onError: notifyError,
  });
  return (
    <>
      <Panel
        title={name}
        actions={
          <Link className="button primary" to={vectorPath(vector)}>
            Use it
          </Link>
        }
      >
        <FactList
          facts={[
            ["Made for", vector.model_hint],
            ["Width", vector.width],
            ["Where", `${layersSaid(layers.map(({ layer }) => layer))}, ${sites.join(", ")}`],
            ["Use", vector.operation === "project" ? "projected out" : "added"],
            ["Acts at", actsAt(vector)],
            ["Suggested value", vector.suggested_value === null ? null : signed(vector.suggested_value)],
            ["Layers read as", conventionOf(vector)],
            ["From", source.file ?? source.repository_id ?? source.local_path ?? source.kind],
            ["Format", source.format],
            ["Stored", <Clock key="stored" at={vector.created_at} />],
            ["Content", <code key="digest" title={vector.content_digest}>{vector.content_digest.slice(0, 12)}…</code>],
          ]}
        />
        <Warnings warnings={vector.warnings} />
        <LayerBars
          title="Length at each layer"
          label={`Length of ${name} at each layer`}
          unit="length"
          bars={layers.map(({ layer, site, norm }) => ({
            name: sites.length === 1 ? String(layer) : `${layer} ${site}`,
            value: norm,
          }))}
        />
        <Foot
          name={name}
          isActive={false}
          isPending={remove.isPending}
          isDeleting={remove.isPending}
          sent={described("post", "/v1/chat/completions", {
            body: {
              model: "MODEL",
              messages: [{ role: "user", content: "Tell me a story." }],
              interventions: { edits: sentEdits([vectorEdit(vector)]) as never },
            },
          })}
          sentTitle="Use it with curl or Python"
          onDelete={() => remove.mutate(undefined)}
        >
          {FORMATS.map((format) => (
            <button key={format} type="button" disabled={save.isPending} onClick={() => save.mutate(format)}>
              {save.isPending && save.variables === format ? "Exporting" : "Export"} {NAMES[format]}
            </button>
          ))}
        </Foot>
      </Panel>
      <WhatItDoes vector={vector} />
      {vector.training !== null && <Trained training={vector.training} />}
      <VectorWrites vector={vector} />
      <VectorNeighbours vector={vector} onOpen={onOpen} />
    </>
  );
}

function conventionOf({ layer_convention, layer_offset }: Vector): string {
  return layer_offset === 0 ? layer_convention : `${layer_convention}, ${signed(layer_offset)}`;
}

/** Where edits act that name the vector and no layers. */
function actsAt({ training, measured }: Vector): string {
  if (training === null) return "all its layers, unless an edit names some";
  const best = bestLayer({ training, measured });
  if (best === null) return "all its layers, unless an edit names some";
  const why = measured?.best == null ? "the best of its training" : "where it was measured to act best";
  return `layer ${best}, ${why}, unless an edit names others`;
}
