// One side of the comparison: what steers it, its text or its tokens, and how it ended.
import type { ReactNode } from "react";
import { Copy } from "../../parts/Copy";
import { Segmented } from "../../parts/Segmented";
import { TokenView } from "../../parts/TokenView";
import { added, type Comparison, type Side } from "../../rules/comparison";
import { marked, type Stretch } from "../../rules/diff";
import { keyOf, listed, MESSAGES_MAXIMUM, type Place, type View } from "../../rules/steer";
import { Added } from "./Added";
import { Report } from "./Report";
import { SteerWith } from "./SteerWith";
import { WhyToken } from "./WhyToken";
import type { Steer } from "./useSteer";

const VIEWS = [
  { value: "text", label: "Text" },
  { value: "tokens", label: "Tokens", title: "Each token, coloured by a feature" },
] as const;
const NAMES = { plain: "Plain", steered: "Steered" };

export function Column({
  kind,
  steer,
  comparison,
  side,
  stretches,
  view,
  onView,
  children,
}: {
  kind: "plain" | "steered";
  steer: Steer;
  comparison: Comparison | undefined;
  side: Side | undefined;
  stretches: readonly Stretch[] | null;
  view: View;
  onView: (view: View) => void;
  /** What stands here before there is a text. */
  children: ReactNode;
}) {
  const { state, change, isRunning } = steer;
  const name = NAMES[kind];
  // the SAE that the tokens were read with
  const read = comparison?.sae ?? null;
  const isWriting = isRunning && side !== undefined && side.finish === null;
  return (
    <article className={`side ${kind}`} aria-label={name} data-waiting={comparison?.phase === "waiting" || undefined}>
      <header>
        <h2>{name}</h2>
        <Added side={side} kind={kind} />
      </header>
      <div className="side-body">
        {side === undefined ? (
          <p className="quiet">{children}</p>
        ) : view === "tokens" && side.tokens.length > 0 ? (
          <TokenView
            name={`Tokens of the ${kind} side`}
            tokens={side.tokens}
            first={comparison?.promptTokens ?? 0}
            listed={listed(state, 2)}
            steered={added(comparison?.sides[1]?.steering ?? {})
              .filter(({ key }) => read !== null && key === keyOf(read))
              .map(({ index }) => ({ index, label: labelOf(comparison?.sides[1] ?? side, index) }))}
            beside={comparison?.sides[kind === "plain" ? 1 : 0]?.tokens ?? []}
            pick={state.pick < 0 ? null : state.pick}
            onPick={(pick) => change({ pick: typeof pick === "number" ? pick : -1 })}
            about={about(kind, read)}
            more={
              read === null
                ? undefined
                : ({ position }) =>
                    position >= (comparison?.promptTokens ?? 0) && (
                      <WhyToken tokens={side.tokens.map(({ text }) => text)} at={position} place={read} />
                    )
            }
            actions={read === null ? undefined : (feature) => <SteerWith steer={steer} place={read} feature={feature} />}
          />
        ) : (
          <p className="side-text" data-writing={isWriting || undefined}>
            {stretches === null ? side.text : <Words stretches={stretches} own={kind === "plain" ? "left" : "right"} />}
          </p>
        )}
        {side?.report !== undefined && <Report edits={side.edits ?? []} report={side.report} answer={side.answer} />}
        {side !== undefined && <p className="quiet numbers">{ending(side, comparison?.asked["max_tokens"])}</p>}
      </div>
      <footer>
        {steer.place !== null && side?.edits === undefined && (
          <Segmented label={`View of the ${kind} side`} options={VIEWS} value={view} onChange={onView} />
        )}
        {side !== undefined && side.text !== "" && !isWriting && (
          <span className="row">
            <button
              type="button"
              className="small"
              title="Make this text a part of the prompt"
              disabled={state.as === "chat" && (state.chat ?? []).length + 2 > MESSAGES_MAXIMUM}
              onClick={() => goOn(steer, side.text)}
            >
              Go on<span className="only-read"> from the {kind} text</span>
            </button>
            <Copy text={side.text} label={`Copy the ${kind} text`} />
          </span>
        )}
      </footer>
    </article>
  );
}

/** When the values of a side's tokens were read. The request of the page asks for no other moment. */
function about(kind: "plain" | "steered", read: Place | null): string | undefined {
  if (read === null) return undefined;
  const at = `Features of layer ${read.layer}`;
  return kind === "plain" ? `${at}. Nothing steers this side.` : `${at}, after steering has added to it.`;
}

function Words({ stretches, own }: { stretches: readonly Stretch[]; own: "left" | "right" }) {
  return marked(stretches, own).map(({ text, differs }, index) =>
    differs ? <mark key={index}>{text}</mark> : <span key={index}>{text}</span>,
  );
}

function ending({ finish, written }: Side, most: unknown): string {
  if (written === 0 && finish === null) return "";
  const tokens = `${written} ${written === 1 ? "token" : "tokens"}`;
  if (finish === "stop") return `${tokens}, ended by itself`;
  return finish === "length" ? `${tokens}, cut at ${String(most)}` : tokens;
}

/** The label that the tokens of a side have for a feature. */
function labelOf({ tokens }: Side, index: number): string | null {
  for (const { features } of tokens) {
    const label = features?.find((feature) => feature.index === index)?.label;
    if (label !== undefined) return label;
  }
  return null;
}

/** The text becomes a part of the prompt. */
function goOn({ state, change, text }: Steer, written: string): void {
  text.forget();
  if (state.as === "prompt") change({ prompt: state.prompt + written, chat: state.chat });
  else {
    const said = (state.chat ?? []).filter(({ content }) => content.trim() !== "");
    change({
      prompt: state.prompt,
      chat: [...said, { role: "assistant", content: written }, { role: "user", content: "" }],
    });
  }
}
