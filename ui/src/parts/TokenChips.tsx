// The chips of a text. They stand in blocks, of which the browser draws only those in sight.
import { useEffect, useId, useRef, useState, type KeyboardEvent, type PointerEvent, type ReactNode } from "react";
import { decimal } from "../rules/bytes";
import { shade, type Pick, type Token, type TokenFeature } from "../rules/tokens";
import { BLOCK, ChipBlock } from "./ChipBlock";
import { TokenCard } from "./TokenCard";
import { across } from "./across";

/** The time that the pointer rests on another chip before that one opens, so that the way to the card is free. */
const REST = 110;
const PAGE = 50;

export interface ChipsProps {
  name: string;
  tokens: readonly Token[];
  first: number;
  pick: Pick;
  scale: number;
  listed: number;
  onPick: (pick: Pick) => void;
  actions?: ((feature: TokenFeature) => ReactNode) | undefined;
  more?: ((token: Token) => ReactNode) | undefined;
}

export function TokenChips({ name, tokens, first, pick, scale, listed, onPick, actions, more }: ChipsProps) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const [open, setOpen] = useState<number | null>(null);
  const [isPinned, setPinned] = useState(false);
  const [at, setAt] = useState(0);
  useEffect(() => () => clearTimeout(timer.current), []);

  const close = () => {
    clearTimeout(timer.current);
    setOpen(null);
    setPinned(false);
  };
  const later = (action: () => void, time = REST) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(action, time);
  };
  const over = (event: PointerEvent) => {
    if (event.pointerType === "touch" || isPinned) return;
    const place = placeOf(event.target);
    if (place === null) return;
    later(() => setOpen(place), open === null ? 40 : REST);
  };
  const move = (to: number) => {
    const place = Math.max(0, Math.min(tokens.length - 1, to));
    setAt(place);
    setOpen(place);
    document.getElementById(`${id}-${place}`)?.scrollIntoView({ block: "nearest" });
  };
  const keys = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = target(event.key, at, tokens.length, (direction) => across(list.current, `${id}-${at}`, direction));
    if (to !== null) move(to);
    else if (event.key === "Enter" || event.key === " ") setPinned(open !== null && !isPinned);
    else if (event.key === "Escape" && open !== null) close();
    else return;
    event.preventDefault();
  };
  const token = open === null ? undefined : tokens[open];
  const blocks = Math.ceil(tokens.length / BLOCK);
  return (
    <div
      className="chips-box"
      ref={box}
      onPointerLeave={() => !isPinned && later(() => setOpen(null), 220)}
      onBlur={(event) => !box.current?.contains(event.relatedTarget) && close()}
    >
      <div
        className="chips"
        ref={list}
        role="listbox"
        tabIndex={0}
        aria-label={name}
        aria-activedescendant={open === null ? undefined : `${id}-${open}`}
        onKeyDown={keys}
        onFocus={(event) => event.target === list.current && list.current.matches(":focus-visible") && move(at)}
        onPointerOver={over}
        onClick={(event) => {
          const place = placeOf(event.target);
          if (place === null) return;
          setAt(place);
          setOpen(place);
          setPinned(!(isPinned && open === place));
        }}
      >
        {Array.from({ length: blocks }, (_, block) => (
          <ChipBlock
            key={block}
            id={id}
            tokens={tokens}
            first={first}
            start={block * BLOCK}
            end={Math.min(tokens.length, (block + 1) * BLOCK)}
            open={open !== null && Math.floor(open / BLOCK) === block ? open : -1}
            pick={pick}
            scale={scale}
            listed={listed}
          />
        ))}
      </div>
      {token !== undefined && (
        <TokenCard
          key={open}
          token={token}
          anchor={`${id}-${open}`}
          box={box}
          pick={pick}
          says={saysOf(token, pick, listed)}
          isPinned={isPinned}
          onPick={onPick}
          onClose={close}
          onEnter={() => clearTimeout(timer.current)}
          actions={actions}
          more={more}
        />
      )}
    </div>
  );
}

function placeOf(element: EventTarget): number | null {
  const place = element instanceof HTMLElement ? element.dataset["i"] : undefined;
  return place === undefined ? null : Number(place);
}

function target(key: string, at: number, length: number, line: (direction: 1 | -1) => number): number | null {
  switch (key) {
    case "ArrowRight":
      return at + 1;
    case "ArrowLeft":
      return at - 1;
    case "ArrowDown":
      return line(1);
    case "ArrowUp":
      return line(-1);
    case "PageDown":
      return at + PAGE;
    case "PageUp":
      return at - PAGE;
    case "Home":
      return 0;
    case "End":
      return length - 1;
    default:
      return null;
  }
}

function saysOf(token: Token, pick: Pick, listed: number): string {
  const shown = shade(token, pick, listed);
  if (shown === null) return "not measured";
  if (shown.isExact) return decimal(shown.value);
  const least = Math.min(...(token.features ?? []).map(({ value }) => value));
  return `under ${decimal(least)}`;
}
