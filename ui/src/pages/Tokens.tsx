// A text as the model reads it: each token with its features and how likely it was, without steering.
import { useState, type ReactNode } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { useCanRank } from "../api/corpora";
import { attachments, models } from "../api/queries";
import { readTokens } from "../api/steer";
import { Copy } from "../parts/Copy";
import { Answered, Panel } from "../parts/Panel";
import { useLink } from "../parts/useLink";
import { abilitiesOf } from "../rules/abilities";
import { mayRank } from "../rules/reading";
import { keyOf, servedName } from "../rules/steer";
import { useShortcut } from "../shortcuts";
import "../css/chips.css";
import "../css/tokens-page.css";
import { NoHooks } from "./NoHooks";
import { EXAMPLE, TOKENS } from "./tokens/link";
import { Lens } from "./tokens/Lens";
import { ReadView } from "./tokens/ReadView";

export default function Tokens() {
  const [link, change] = useLink(TOKENS);
  const [draft, setDraft] = useState<string | null>(null);
  const loaded = useQuery(models);
  const attached = useQuery(attachments);
  const model = loaded.data?.models.find(({ id }) => id === loaded.data.loaded_model_id) ?? null;
  const places = attached.data?.entries ?? [];
  const isElsewhere = link.sae !== "" && attached.data !== undefined && !places.some((entry) => keyOf(entry) === link.sae);
  const place = isElsewhere ? null : (places.find((entry) => keyOf(entry) === link.sae) ?? places[0] ?? null);
  const written = draft ?? (link.text || EXAMPLE);
  const isScored = model !== null && attached.data !== undefined && abilitiesOf(model).scores;
  const name = isScored ? servedName(model, loaded.data?.models ?? []) : null;
  // a text of a link is read when a person asks for it
  const [asked, setAsked] = useState("");
  const isAsked = asked !== "" && asked === link.text;
  const canRank = useCanRank(place) && mayRank(link.text);
  const rank = canRank ? link.rank : "value";
  const reading = useQuery({ ...readTokens(name, place, link.text, rank), enabled: isAsked && name !== null && !isElsewhere });
  const canRead = name !== null && !isElsewhere && written.trim() !== "";
  const read = () => {
    if (!canRead) return;
    if (written === asked) void reading.refetch();
    setAsked(written);
    if (written !== link.text) change({ text: written }, { push: true });
    setDraft(null);
  };
  useShortcut("send", read, canRead);
  return (
    <div className="page tokens-page">
      <header className="page-head">
        <div>
          <h1>Tokens</h1>
          <p className="lead">
            A text as the model reads it: the features of each token, and how much each token surprised it.
          </p>
        </div>
        <Copy text={location.href} label="Copy link to this view" says="Copy link" />
      </header>
      <NoHooks model={model} all={loaded.data?.models ?? []}>
        It tells no log-probabilities either, so no text is read here. <Link to="/steer">Let it write</Link>.
      </NoHooks>
      <section className="panel" aria-label="Text">
        <textarea
          aria-label="Text to read"
          rows={3}
          value={written}
          onChange={(event) => setDraft(event.target.value)}
        />
        <div className="row spread">
          <span className="row">
            {(places.length > 1 || isElsewhere) && (
              <select
                aria-label="SAE"
                value={place === null ? "" : keyOf(place)}
                onChange={(event) => change({ sae: event.target.value })}
              >
                {place === null && <option value="">Choose an SAE</option>}
                {places.map((entry) => (
                  <option key={keyOf(entry)} value={keyOf(entry)}>
                    layer {entry.layer}, {entry.sae_id}
                  </option>
                ))}
              </select>
            )}
            <span className="quiet">One pass of the model, never steered. Nothing is written or kept.</span>
          </span>
          <button type="button" className="primary" disabled={!canRead} onClick={read}>
            Read the text
          </button>
        </div>
      </section>
      {model === null && loaded.data !== undefined ? (
        <Empty>
          No model is loaded. <Link to="/models">Load a model</Link>.
        </Empty>
      ) : isElsewhere ? (
        <Empty>
          The SAE of this link, <code>{link.sae}</code>, is not attached.{" "}
          <Link to={`/saes?attach=${encodeURIComponent(link.sae)}`}>Attach it</Link>, or choose another one above.
        </Empty>
      ) : !isScored ? null : (
        <>
          {place === null && (
            <div className="notice">
              <p>
                No SAE is attached, so no features are read: only how likely each token was.{" "}
                <Link to="/saes">Attach an SAE</Link>.
              </p>
            </div>
          )}
          {link.text === "" || (!isAsked && reading.data === undefined) ? (
            <Empty>Read the text above, or write another one.</Empty>
          ) : (
            <Answered query={reading}>
              {(text) => (
                <>
                  <ReadView
                    text={text}
                    listed={text.listed}
                    pick={link.pick}
                    onPick={(pick) => change({ pick })}
                    prompt={link.text}
                    rank={canRank ? rank : null}
                    onRank={(rank) => change({ rank })}
                  />
                  <Lens key={link.text} text={link.text} layers={model.layers} />
                </>
              )}
            </Answered>
          )}
        </>
      )}
    </div>
  );
}

function Empty({ children }: { children: ReactNode }) {
  return (
    <Panel title="Tokens of the text">
      <p className="empty">{children}</p>
    </Panel>
  );
}
