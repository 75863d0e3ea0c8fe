// The tokens that a feature promotes and those that it suppresses.
import type { UseQueryResult } from "@tanstack/react-query";
import type { Feature } from "../../api/features";
import { QueryPanel } from "../../parts/Panel";
import { TokenEffects } from "../../parts/TokenEffects";

export function Writes({ query }: { query: UseQueryResult<Feature> }) {
  return (
    <QueryPanel
      title="What it writes"
      query={query}
      about="What its decoder direction adds to the logit of a token, less the mean of all tokens. Not an effect that was measured: later layers read the feature too."
      isEmpty={({ promotes, suppresses }) => promotes == null || suppresses == null}
      empty="Known only while the SAE is attached, at a site whose values are added to the residual stream."
    >
      {({ promotes, suppresses }) => <TokenEffects promotes={promotes ?? []} suppresses={suppresses ?? []} />}
    </QueryPanel>
  );
}
