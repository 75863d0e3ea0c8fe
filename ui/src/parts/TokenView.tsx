// A text as its tokens, coloured by one feature. Pointing at a token, or moving to it with the arrow keys, opens it.
import { useDeferredValue, useMemo, type ReactNode } from "react";
import { decimal } from "../rules/bytes";
import { found, scaleOf, striking, type Found, type Pick, type Token, type TokenFeature } from "../rules/tokens";
import { ScaleKey } from "./ScaleKey";
import { TokenChips } from "./TokenChips";

export interface NamedFeature {
  index: number;
  label: string | null;
}
const MOST = 60;
const NONE: readonly Token[] = [];

export function TokenView({
  name,
  tokens,
  first = 0,
  listed,
  steered = [],
  beside = NONE,
  pick,
  onPick,
  about,
  actions,
  more,
}: {
  /** Whose tokens they are, for screen readers: `Tokens of the steered text`. */
  name: string;
  tokens: readonly Token[];
  /** The position of the first token that the model wrote; the tokens before it are the prompt. */
  first?: number;
  /** The number of features that each token has at most. */
  listed: number;
  /** The features that steer. They come first in the choice. */
  steered?: readonly NamedFeature[];
  /** The tokens of a text that is compared with this one: both have one scale. */
  beside?: readonly Token[];
  /** The feature that colours; null lets the view choose. */
  pick: Pick | null;
  onPick: (pick: Pick) => void;
  /** When the values were read: before or after steering added to the activations. */
  about?: string | undefined;
  /** What can be done with a feature of an open token. */
  actions?: ((feature: TokenFeature) => ReactNode) | undefined;
  /** What more is told of a token whose card stays open. */
  more?: ((token: Token) => ReactNode) | undefined;
}) {
  const settled = useDeferredValue(tokens);
  const features = useMemo(() => found(settled), [settled]);
  const chosen = pick ?? steered[0]?.index ?? striking(features, settled.length)?.index ?? -1;
  const other = useDeferredValue(beside);
  const scale = useMemo(
    () => Math.max(scaleOf(settled, chosen, listed), scaleOf(other, chosen, listed)),
    [settled, other, chosen, listed],
  );
  if (tokens.length === 0) return null;
  return (
    <div className="token-view">
      <div className="token-head">
        <label className="token-pick">
          <span className="only-read">The colour of {name}</span>
          <select value={String(chosen)} onChange={(event) => onPick(picked(event.target.value))}>
            <Options features={features} steered={steered} chosen={chosen} tokens={settled} />
          </select>
        </label>
        <ScaleKey most={scale} unit={chosen === "surprise" ? " nats" : ""} />
      </div>
      {about !== undefined && <p className="quiet">{about}</p>}
      <TokenChips
        name={name}
        tokens={tokens}
        first={first}
        pick={chosen}
        scale={scale}
        listed={listed}
        onPick={onPick}
        actions={actions}
          more={more}
      />
    </div>
  );
}

function Options({
  features,
  steered,
  chosen,
  tokens,
}: {
  features: readonly Found[];
  steered: readonly NamedFeature[];
  chosen: Pick;
  tokens: readonly Token[];
}) {
  const first = new Set(steered.map(({ index }) => index));
  const rest = features.filter(({ index }) => !first.has(index)).slice(0, MOST);
  const isListed = chosen === "surprise" || first.has(chosen) || rest.some(({ index }) => index === chosen);
  const hasSurprise = tokens.some(({ logprob }) => logprob != null);
  return (
    <>
      {!isListed && <option value={String(chosen)}>{chosen === -1 ? "no feature" : `#${chosen}`}</option>}
      {hasSurprise && <option value="surprise">surprise: −log-probability of each token</option>}
      {steered.length > 0 && (
        <optgroup label="Steered">
          {steered.map((one) => (
            <option key={one.index} value={one.index}>
              {named(one)}
            </option>
          ))}
        </optgroup>
      )}
      {rest.length > 0 && (
        <optgroup label="Strongest here">
          {rest.map((one) => (
            <option key={one.index} value={one.index}>
              {named(one)}, up to {decimal(one.most, 1)}
            </option>
          ))}
        </optgroup>
      )}
    </>
  );
}

function named({ label, index }: NamedFeature): string {
  return label === null ? `#${index}` : `${label} #${index}`;
}

function picked(written: string): Pick {
  return written === "surprise" ? written : Number(written);
}
