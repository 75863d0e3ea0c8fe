// The features with the largest figures since the statistics began.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { useCanRank, type Rank } from "../../api/corpora";
import { monitoring, top, type Metric } from "../../api/monitoring";
import { Bars } from "../../parts/Bars";
import { exampleBeneath } from "../../parts/Example";
import { Clock } from "../../parts/Moment";
import { Answered, Panel } from "../../parts/Panel";
import { FIRST, RankChoice } from "../../parts/RankChoice";
import { Segmented } from "../../parts/Segmented";
import { count, decimal, percent } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";

export const METRICS = ["mean", "max", "active_ratio", "count"] as const satisfies readonly Metric[];
const OPTIONS = [
  { value: "mean", label: "mean", title: "The largest mean activation" },
  { value: "max", label: "max", title: "The largest activation" },
  { value: "active_ratio", label: "active ratio", title: "Active at the largest share of the tokens" },
  { value: "count", label: "count", title: "Active at the most tokens" },
] as const;
const FORMATS: Record<Metric, (value: number) => string> = {
  mean: decimal,
  max: decimal,
  active_ratio: (value) => percent(value, 1),
  count,
};
const SHOWN = 20;

export function Top({ sae, by, onBy }: { sae: string; by: Metric; onBy: (by: Metric) => void }) {
  const state = useQuery(monitoring);
  return (
    <Panel
      title="Top of the statistics"
      actions={<Segmented label="The figure that ranks" options={OPTIONS} value={by} onChange={onBy} />}
    >
      <Answered query={state}>
        {({ sae_id, layer }) => {
          if (sae_id === null) return <Hint>No SAE is attached, so there are no statistics.</Hint>;
          if (sae_id !== sae) return <Hint>Only the SAE that was attached first is monitored.</Hint>;
          return <Ranked sae={sae} layer={layer} by={by} />;
        }}
      </Answered>
    </Panel>
  );
}

function Ranked({ sae, layer, by }: { sae: string; layer: number | null; by: Metric }) {
  const [chosen, choose] = useState<Rank>("rarity");
  const canRank = useCanRank(layer === null ? null : { sae_id: sae, layer });
  const rank = canRank ? chosen : "value";
  const ranked = useQuery(top(by, SHOWN, rank));
  return (
    <Answered
      query={ranked}
      isEmpty={({ features }) => features.length === 0}
      empty={
        <p>
          No token was monitored yet. <Link to="/live">Switch monitoring on</Link>, and let the model write.
        </p>
      }
    >
      {({ features, tokens, since, metric }) => (
        <>
          {canRank && (
            <div className="row">
              <RankChoice value={rank} onChange={choose} />
            </div>
          )}
          <p className="quiet">
            Over {count(tokens)} tokens since {since === null ? "–" : <Clock at={since} />}. {rank !== "value" && FIRST[rank]}
          </p>
          <Bars
            label={`Features with the largest ${metric}`}
            format={FORMATS[metric]}
            bars={features.map((one) => ({
              id: String(one.feature_idx),
              label: (
                <Link to={featurePath({ sae, layer, index: one.feature_idx })} title={one.label}>
                  {one.label ?? placeName(layer, one.feature_idx)}
                </Link>
              ),
              // the service ranks `count` by the tokens at which a feature was active
              value: metric === "count" ? Math.round(one.active_ratio * one.count) : one[metric],
              rankedBy: one.weight,
              beneath: exampleBeneath(one.example),
            }))}
          />
        </>
      )}
    </Answered>
  );
}

function Hint({ children }: { children: string }) {
  return <p className="empty">{children}</p>;
}
