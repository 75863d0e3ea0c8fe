// The way from a feature of a text to the Steer page, with the feature at its typical strength.
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { feature as asked } from "../../api/steer";
import { notifyError } from "../../parts/Notices";
import { written } from "../../rules/link";
import { beginning, keyOf, STEER, type Place } from "../../rules/steer";
import type { TokenFeature } from "../../rules/tokens";

export function SteerHere({ sae, feature, prompt }: { sae: Place; feature: TokenFeature; prompt: string }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const go = async () => {
    try {
      const { typical_strength } = await client.fetchQuery(asked(sae.sae_id, feature.index));
      const state = {
        as: "prompt",
        prompt,
        sae: keyOf(sae),
        f: [[feature.index, beginning(typical_strength), 1, keyOf(sae)]],
      } as const;
      await navigate({ pathname: "/steer", search: written(new URLSearchParams(), STEER, state).toString() });
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <button
      type="button"
      className="small"
      aria-label={`Steer with ${feature.label ?? `feature ${feature.index}`}`}
      onClick={() => void go()}
    >
      Steer
    </button>
  );
}
