// The tokens of a text that was read, and its strongest features.
import { useMemo } from "react";
import type { Rank } from "../../api/corpora";
import { Bars } from "../../parts/Bars";
import { Figure } from "../../parts/Figure";
import { Panel } from "../../parts/Panel";
import { FIRST, RankChoice } from "../../parts/RankChoice";
import { TokenView } from "../../parts/TokenView";
import { count, decimal } from "../../rules/bytes";
import type { ReadText } from "../../rules/reading";
import { found, type Pick } from "../../rules/tokens";
import { ExampleOf } from "../features/ExampleOf";
import { SteerHere } from "./SteerHere";

const MOST = 14;

export function ReadView({
  text,
  listed,
  pick,
  onPick,
  prompt,
  rank,
  onRank,
}: {
  text: ReadText;
  listed: number;
  pick: Pick | null;
  onPick: (pick: Pick) => void;
  prompt: string;
  /** What ranks the features; null where no corpus was read of the SAE. */
  rank: Rank | null;
  onRank: (rank: Rank) => void;
}) {
  const { tokens, sae } = text;
  const features = useMemo(() => found(tokens, rank ?? "value").slice(0, MOST), [tokens, rank]);
  const scored = useMemo(() => tokens.flatMap(({ logprob }) => (logprob == null ? [] : [logprob])), [tokens]);
  const surprise = scored.length === 0 ? null : -scored.reduce((sum, value) => sum + value, 0) / scored.length;
  const bars = features.map(({ index, label, most, count: at, weight }) => ({
    id: String(index),
    value: most,
    rankedBy: rank === null || rank === "value" ? undefined : weight,
    label: (
      <span title={`${label ?? "no label"}, feature ${index}, at ${at} of ${tokens.length} tokens`}>
        {label ?? `#${index}`}
      </span>
    ),
    action: (
      <button
        type="button"
        className="small"
        aria-pressed={pick === index}
        aria-label={`See where ${label ?? `#${index}`} is active`}
        onClick={() => onPick(index)}
      >
        See
      </button>
    ),
    // without a rank no corpus was read of the SAE
    beneath: sae === null || rank === null ? undefined : <ExampleOf sae={sae.sae_id} index={index} />,
  }));
  return (
    <div className="read-view" data-alone={sae === null || undefined}>
      <Panel title="Tokens of the text">
        <TokenView
          name="Tokens of the text"
          tokens={tokens}
          listed={listed}
          about={sae === null ? undefined : `Features of layer ${sae.layer}. Nothing steers this pass.`}
          pick={sae === null ? "surprise" : pick}
          onPick={onPick}
          actions={sae === null ? undefined : (feature) => <SteerHere sae={sae} feature={feature} prompt={prompt} />}
        />
        <div className="figures">
          <Figure label="tokens" value={count(tokens.length)} />
          <Figure label="mean surprise, nats" value={decimal(surprise)} />
          <Figure label="perplexity" value={decimal(surprise === null ? null : Math.exp(surprise), 1)} />
          {sae !== null && <Figure label="features a token, at most" value={count(listed)} />}
        </div>
      </Panel>
      {sae !== null && (
        <Panel
          title="Strongest features"
          about={`The bar is the largest value in the text. ${FIRST[rank ?? "value"]} The first token is left out.`}
          actions={rank !== null && <RankChoice value={rank} onChange={onRank} />}
        >
          <Bars label="Strongest features of the text" bars={bars} />
        </Panel>
      )}
    </div>
  );
}
