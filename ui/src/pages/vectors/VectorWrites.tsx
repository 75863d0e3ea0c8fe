// The tokens that a vector promotes and those that it suppresses, at one of its layers.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { vectorTokens, type Vector } from "../../api/vectors";
import { QueryPanel } from "../../parts/Panel";
import { TokenEffects } from "../../parts/TokenEffects";
import { bestLayer } from "../../rules/edits";
import { layersOf } from "../../rules/layers";
import { LayerSelect } from "./LayerSelect";

export function VectorWrites({ vector }: { vector: Vector }) {
  const layers = layersOf(vector);
  const [layer, setLayer] = useState(bestLayer(vector) ?? layers[Math.floor(layers.length / 2)] ?? 0);
  const query = useQuery(vectorTokens(vector.id, layer));
  return (
    <QueryPanel
      title="What it writes"
      query={query}
      about="What its direction adds to the logit of a token in the loaded model, less the mean of all tokens. Not an effect that was measured: later layers read the direction too."
      actions={
        <LayerSelect
          label="Layer of the direction"
          layers={layers}
          layer={layer}
          onChange={(chosen) => chosen !== null && setLayer(chosen)}
        />
      }
      isEmpty={(answer) => answer.layers.every(({ promotes }) => promotes === null)}
      empty="Known only at sites whose values are added to the residual stream."
    >
      {(answer) =>
        answer.layers.map(
          ({ site, promotes, suppresses }) =>
            promotes !== null && (
              <div key={site}>
                {answer.layers.length > 1 && <h3>{site}</h3>}
                <TokenEffects promotes={promotes} suppresses={suppresses ?? []} />
              </div>
            ),
        )
      }
    </QueryPanel>
  );
}
