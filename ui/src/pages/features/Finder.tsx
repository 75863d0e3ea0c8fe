// The search for a feature: by the words of its label, by its index, or among the top of the statistics.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { attachments } from "../../api/queries";
import { saes, type Sae } from "../../api/saes";
import { Answered, Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { useLink } from "../../parts/useLink";
import { count } from "../../rules/bytes";
import { choice, number, text } from "../../rules/link";
import { METRICS, Top } from "./Top";
import { ByText } from "./ByText";
import { Search } from "./Search";

const LINK = { sae: text(), q: text(), in: choice(["labels", "promotes", "examples", "text"]), by: choice(METRICS), draw: number(0, 0, 999_999) };
const PLACES = [
  { value: "labels", label: "Labels", title: "Words of the label of a feature" },
  { value: "examples", label: "Examples", title: "A word at which the feature is strongest in a corpus" },
  { value: "text", label: "A text", title: "A text on which the feature fires" },
  { value: "promotes", label: "Promoted tokens", title: "A word that the feature makes more probable" },
] as const;

const ABOUT = {
  labels: "Write words of a label, or an index.",
  examples: "Write a word, and see the features that are strongest at it.",
  text: "Write a text, and see the features that fire on it.",
  promotes: "Write a word, and see the features that promote it.",
};

export function Finder() {
  const [link, change] = useLink(LINK);
  const all = useQuery(saes);
  const attached = useQuery(attachments).data?.entries ?? [];
  const single = all.data?.saes.filter((sae) => sae.d_sae !== null) ?? [];
  const chosen =
    single.find((sae) => sae.id === link.sae) ??
    single.find((sae) => sae.id === attached[0]?.sae_id) ??
    single[0];
  const layer = attached.find((entry) => entry.sae_id === chosen?.id)?.layer ?? null;
  return (
    <div className="page">
      <header className="page-head">
        <h1>Features</h1>
        {chosen !== undefined && (
          <label className="row sae-choice">
            <span className="quiet">of</span>
            <select aria-label="SAE" value={chosen.id} onChange={(event) => change({ sae: event.target.value })}>
              {single.map((sae) => (
                <option key={sae.id} value={sae.id}>
                  {words(sae, attached.find((entry) => entry.sae_id === sae.id)?.layer)}
                </option>
              ))}
            </select>
          </label>
        )}
      </header>
      <Answered
        query={all}
        isEmpty={() => chosen === undefined}
        empty={
          <p>
            No SAE is here yet. A feature is one direction of an SAE. <Link to="/saes">Get an SAE.</Link>
          </p>
        }
      >
        {() =>
          chosen !== undefined && (
            <>
              <Panel
                title="Find"
                about={`This SAE has ${count(chosen.d_sae)} features. ${ABOUT[link.in]}`}
                actions={
                  <Segmented label="Where to search" options={PLACES} value={link.in} onChange={(place) => change({ in: place })} />
                }
              >
                {link.in === "labels" ? (
                  <Search
                    key={chosen.id}
                    sae={chosen}
                    layer={layer}
                    words={link.q}
                    onWords={(q) => change({ q })}
                    seed={link.draw}
                    onSeed={(draw) => change({ draw })}
                    onWay={(way) => change({ in: way })}
                  />
                ) : (
                  <ByText
                    key={`${chosen.id} ${link.in}`}
                    sae={chosen.id}
                    layer={layer}
                    way={link.in}
                    word={link.q}
                    onWord={(q) => change({ q })}
                    onWay={(way) => change({ in: way })}
                  />
                )}
              </Panel>
              <Top sae={chosen.id} by={link.by} onBy={(by) => change({ by })} />
            </>
          )
        }
      </Answered>
    </div>
  );
}

function words(sae: Sae, layer: number | undefined): string {
  return layer === undefined ? `${sae.name}, not attached` : `${sae.name}, attached at layer ${layer}`;
}
