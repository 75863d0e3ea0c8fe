// The way to the Steer page with a feature at its typical strength.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { feature } from "../../api/steer";
import { notifyError } from "../../parts/Notices";
import { steerPath } from "../../rules/places";
import type { Place } from "../../rules/steer";

export function SteerLink({ sae: { sae_id, layer }, index, name }: { sae: Place; index: number; name: string }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const go = useMutation({
    mutationFn: async () => {
      const { typical_strength } = await client.fetchQuery(feature(sae_id, index));
      await navigate(steerPath(sae_id, layer, index, typical_strength));
    },
    onError: notifyError,
  });
  return (
    <button type="button" className="small" aria-label={`Steer with ${name}`} disabled={go.isPending} onClick={() => go.mutate()}>
      Steer
    </button>
  );
}
