// An open token: its text, its place, how likely it was, and its strongest features.
import { useLayoutEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import { decimal, percent } from "../rules/bytes";
import type { Pick, Token, TokenFeature } from "../rules/tokens";

const WIDTH = 320;
/** The least height, in pixels, for which there must be room. */
const LEAST = 200;
/** The height of the strip above every page. */
const STRIP = 64;
const MOST = 8;

export function TokenCard({
  token,
  anchor,
  box,
  pick,
  says,
  isPinned,
  onPick,
  onClose,
  onEnter,
  actions,
  more,
}: {
  token: Token;
  /** The id of the chip under which the card stands. */
  anchor: string;
  box: RefObject<HTMLElement | null>;
  pick: Pick;
  /** The value under the pick, as text. */
  says: string;
  isPinned: boolean;
  onPick: (pick: Pick) => void;
  onClose: () => void;
  onEnter: () => void;
  actions?: ((feature: TokenFeature) => ReactNode) | undefined;
  /** What more is told of a token whose card stays open. */
  more?: ((token: Token) => ReactNode) | undefined;
}) {
  const card = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ left: 0, top: 0, height: LEAST });
  useLayoutEffect(() => {
    setPlace(placed(anchor, box.current, card.current));
  }, [anchor, box]);
  const features = (token.features ?? []).slice(0, MOST);
  const most = Math.max(0, ...features.map(({ value }) => Math.abs(value)));
  return (
    <div
      ref={card}
      className="token-card"
      role="group"
      aria-label={`Token at position ${token.position}`}
      style={{
        insetInlineStart: place.left,
        insetBlockStart: place.top,
        inlineSize: `min(${WIDTH}px, 100%)`,
        maxBlockSize: place.height,
      }}
      onPointerEnter={onEnter}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        onClose();
      }}
    >
      <div className="token-card-head">
        <code className="token-text">{JSON.stringify(token.text)}</code>
        <span className="quiet">position {token.position}</span>
        {isPinned && (
          <button type="button" className="small" aria-label="Close the token" onClick={onClose}>
            ✕
          </button>
        )}
      </div>
      {token.logprob != null && (
        <p className="quiet">
          log-probability {logarithm(token.logprob)} ({percent(Math.exp(token.logprob), 1)})
        </p>
      )}
      {token.features === undefined ? null : token.features === null ? (
        <p className="quiet">No pass of the model read this token, so it has no features.</p>
      ) : (
        <>
          {typeof pick === "number" && pick >= 0 && !features.some(({ index }) => index === pick) && (
            <p className="quiet">
              #{pick}: {says}
            </p>
          )}
          <ol className="token-features" aria-label="Its strongest features">
            {features.map((feature) => (
              <li key={feature.index}>
                <button
                  type="button"
                  className="token-feature"
                  aria-pressed={feature.index === pick}
                  title="Colour the text by this feature"
                  onClick={() => onPick(feature.index)}
                >
                  <span className="token-feature-name">
                    {feature.label ?? <span className="quiet">no label</span>}{" "}
                    <span className="place">#{feature.index}</span>
                  </span>
                  <span className="token-feature-value">{decimal(feature.value, 1)}</span>
                  <span
                    className="token-feature-bar"
                    style={{ inlineSize: `${most > 0 ? (100 * Math.abs(feature.value)) / most : 0}%` }}
                  />
                </button>
                {actions?.(feature)}
              </li>
            ))}
          </ol>
          {features.length === 0 && <p className="quiet">No feature is active here.</p>}
        </>
      )}
      {isPinned && more?.(token)}
    </div>
  );
}

/**
 * Under the chip, or above it where there is more room; never over what stands above the tokens, nor beyond the sides of
 * the box. The height is that of the room.
 */
function placed(anchor: string, box: HTMLElement | null, card: HTMLElement | null) {
  const chip = document.getElementById(anchor);
  if (chip === null || box === null || card === null) return { left: 0, top: 0, height: LEAST };
  const frame = box.getBoundingClientRect();
  const { left, top, bottom } = chip.getBoundingClientRect();
  const most = Math.max(0, frame.width - Math.min(WIDTH, frame.width));
  const below = window.innerHeight - bottom - 12;
  const above = top - Math.max(frame.top, STRIP) - 8;
  const isAbove = card.scrollHeight > below && above > below;
  const height = Math.max(LEAST, isAbove ? above : below);
  return {
    left: Math.round(Math.min(Math.max(0, left - frame.left - 12), most)),
    top: Math.round(isAbove ? top - frame.top - Math.min(card.scrollHeight + 2, height) - 4 : bottom - frame.top + 4),
    height: Math.round(height),
  };
}

/** A logarithm with a true minus sign, and no sign where it is rounded to 0. */
function logarithm(value: number): string {
  const text = decimal(Math.abs(value));
  return Number(text) === 0 ? text : `${value < 0 ? "−" : ""}${text}`;
}
