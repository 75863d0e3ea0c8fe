// Features of an SAE that is not attached: they steer nothing until it is attached.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { attach, saes } from "../../api/saes";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { placeOf } from "../../rules/steer";
import type { Steer } from "./useSteer";

export function NotAttached({ sae, steer: { state, setFeatures } }: { sae: string; steer: Steer }) {
  const client = useQueryClient();
  const place = placeOf(sae);
  const records = useQuery(saes).data?.saes;
  const record = records?.find(({ id }) => id === place?.sae_id);
  const work = useMutation({
    mutationFn: () => attach({ members: place === null ? [] : [place], isReplacing: false, dtype: null, overrides: {} }),
    // an attach changes what most questions answer
    onSettled: () => client.invalidateQueries(),
  });
  const all = state.f ?? [];
  const own = all.filter(([, , , other]) => other === sae);
  const what = own.length === 1 ? "1 feature is" : `${own.length} features are`;
  return (
    <div className="notice notice-warn flow" role="alert">
      <p>
        {what} of the SAE <code>{place?.sae_id}</code> at layer {place?.layer}, which is not attached there. Nothing is
        written until it is attached, or {own.length === 1 ? "the feature is" : "these features are"} removed or switched
        off.
        {records !== undefined && record === undefined && (
          <>
            {" "}
            This service does not have the SAE. <Link to="/saes">Find it</Link> first.
          </>
        )}
      </p>
      <p className="row">
        {record !== undefined && (
          <button type="button" disabled={work.isPending} onClick={() => work.mutate()}>
            {work.isPending ? "Attaching" : "Attach it"}
          </button>
        )}
        <button type="button" onClick={() => setFeatures(all.filter(([, , , other]) => other !== sae))}>
          Remove {own.length === 1 ? "the feature" : "these features"}
        </button>
      </p>
      {work.error !== null && <ErrorNotice error={work.error} />}
    </div>
  );
}
