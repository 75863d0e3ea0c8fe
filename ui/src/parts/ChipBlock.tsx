// A block of chips. It is drawn again only where its tokens, the feature or the open chip changed.
import { Fragment, memo, type CSSProperties } from "react";
import { chipText, endsLine, shade, type Pick, type Token } from "../rules/tokens";

/** The number of chips in a block. */
export const BLOCK = 120;

interface Props {
  id: string;
  tokens: readonly Token[];
  /** The position of the first token that the model wrote. */
  first: number;
  start: number;
  end: number;
  /** The number of the open chip; -1 where it is in another block. */
  open: number;
  pick: Pick;
  scale: number;
  listed: number;
}

export const ChipBlock = memo(function ChipBlock({ id, tokens, first, start, end, open, pick, scale, listed }: Props) {
  return (
    <div className="chip-block" role="group" aria-label={`Tokens ${start} to ${end - 1}`}>
      {tokens.slice(start, end).map((token, index) => {
        const place = start + index;
        return (
          <Fragment key={place}>
            <span
              id={`${id}-${place}`}
              className="chip"
              role="option"
              aria-selected={place === open}
              data-i={place}
              data-of={token.position < first ? "prompt" : undefined}
              data-read={token.features === null ? "no" : undefined}
              style={{ "--v": part(token, pick, scale, listed) } as CSSProperties}
            >
              {chipText(token.text)}
            </span>
            {(endsLine(token.text) || token.position === first - 1) && <br />}
          </Fragment>
        );
      })}
    </div>
  );
}, isSame);

function part(token: Token, pick: Pick, scale: number, listed: number): number {
  const value = Math.abs(shade(token, pick, listed)?.value ?? 0);
  return scale > 0 ? Number(Math.min(1, value / scale).toFixed(3)) : 0;
}

function isSame(before: Props, after: Props): boolean {
  return (
    before.id === after.id &&
    before.first === after.first &&
    before.end === after.end &&
    before.open === after.open &&
    before.pick === after.pick &&
    before.scale === after.scale &&
    before.listed === after.listed &&
    // texts only grow, so equal ends mean equal blocks
    before.tokens[before.start] === after.tokens[after.start] &&
    before.tokens[before.end - 1] === after.tokens[after.end - 1]
  );
}
