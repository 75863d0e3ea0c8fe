// What a model without layers to hook is, and what works with it. Nothing is shown for a model that has them.
import type { ReactNode } from "react";
import { Link } from "react-router";
import { described } from "../api/client";
import type { Models } from "../api/queries";
import { CopyCode } from "../parts/CopyCode";
import { abilitiesOf } from "../rules/abilities";
import { servedName } from "../rules/steer";

type Model = Models["models"][number];

export function NoHooks({ model, all, children }: { model: Model | null; all: readonly Model[]; children: ReactNode }) {
  if (model === null) return null;
  const { why, writes } = abilitiesOf(model);
  if (why === null) return null;
  const input = ["The sea was calm.", "A storm came up."];
  return (
    <div className="notice flow">
      <p>
        {why} {writes ? children : "It embeds texts, by the request below."}{" "}
        <Link to="/models">Load a checkpoint</Link> to steer and to read features.
      </p>
      {!writes && (
        <CopyCode
          title="Embeddings as curl or Python"
          sent={described("post", "/v1/embeddings", { body: { model: servedName(model, all), input } })}
        />
      )}
    </div>
  );
}
