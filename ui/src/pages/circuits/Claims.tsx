// Which circuit holds which layer, and the release of the claims of one circuit.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import { claims, type Claim } from "../../api/documents";
import { watched } from "../../api/queries";
import { Confirm } from "../../parts/Confirm";
import { QueryPanel } from "../../parts/Panel";
import { Warnings } from "../../parts/Warnings";
import { useAction } from "../documents/actions";

export function Claims({ onOpen }: { onOpen: (id: string) => void }) {
  const list = useQuery(watched(claims));
  const [asked, setAsked] = useState<Claim | null>(null);
  const release = useAction((id: string) =>
    request("post", "/api/circuits/claims/release", { query: { circuit_id: id } }),
  );
  return (
    <QueryPanel
      title="Claims by layer"
      query={list}
      isEmpty={(data) => data.length === 0}
      empty={<p>No circuit holds a layer.</p>}
    >
      {(data) => (
        <>
          <table className="claims">
            <thead>
              <tr>
                <th scope="col">layer</th>
                <th scope="col">held by</th>
                <th scope="col">
                  <span className="only-read">action</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {data.map((claim) => (
                <tr key={`${claim.layer} ${claim.circuit_id}`}>
                  <th scope="row" className="strong">
                    {claim.layer}
                  </th>
                  <td>
                    <button type="button" className="plain-link" onClick={() => onOpen(claim.circuit_id)}>
                      {claim.circuit_name}
                    </button>
                    <br />
                    <span className="quiet">
                      {claim.steering_keys.length} {claim.steering_keys.length === 1 ? "feature" : "features"}
                      {claim.composed && ", shared with another circuit"}
                    </span>
                  </td>
                  <td>
                    <button
                      type="button"
                      className="small"
                      disabled={release.isPending}
                      aria-label={`Release the layers of ${claim.circuit_name}`}
                      onClick={() => setAsked(claim)}
                    >
                      {release.isPending && release.variables === claim.circuit_id ? "Releasing" : "Release"}
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          <Warnings warnings={release.data?.warnings ?? []} />
          <Confirm
            title={`Release the layers of ${asked?.circuit_name ?? "the circuit"}?`}
            action="Release"
            isDangerous
            isOpen={asked !== null}
            onConfirm={() => release.mutate(asked?.circuit_id ?? "")}
            onClose={() => setAsked(null)}
          >
            <p>
              All layers that it holds are released, so another circuit can take them. A circuit that serves goes on steering:
              deactivate it to end that.
            </p>
          </Confirm>
        </>
      )}
    </QueryPanel>
  );
}
