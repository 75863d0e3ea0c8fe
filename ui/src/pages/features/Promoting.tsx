// The search for features that promote a word. The first one in an SAE begins a job, so it is asked for with a button.
import { useRef, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { promoting } from "../../api/features";
import { Bars } from "../../parts/Bars";
import { Answered } from "../../parts/Panel";
import { count } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";
import { useShortcut } from "../../shortcuts";
import { JobRow } from "../jobs/JobRow";

export function Promoting({
  sae,
  layer,
  word,
  onWord,
}: {
  sae: string;
  layer: number | null;
  word: string;
  onWord: (word: string) => void;
}) {
  const [draft, setDraft] = useState(word);
  const [asked, setAsked] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useShortcut("find", () => field.current?.focus());
  const written = draft.trim();
  return (
    <form
      role="search"
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        if (written === "") return;
        onWord(written);
        setAsked(written);
      }}
    >
      <div className="row find-row">
        <input
          ref={field}
          type="search"
          aria-label="A word that the feature promotes"
          placeholder="waves"
          maxLength={200}
          value={draft}
          onChange={(event) => setDraft(event.target.value)}
        />
        <button type="submit" className="primary" disabled={written === ""}>
          Search
        </button>
      </div>
      {asked === "" ? (
        <p className="empty">
          The first search in an SAE computes the promoted tokens of all its features, beside running requests. Later ones
          are answered at once.
        </p>
      ) : (
        <Promoters sae={sae} layer={layer} word={asked} />
      )}
    </form>
  );
}

function Promoters({ sae, layer, word }: { sae: string; layer: number | null; word: string }) {
  const query = useQuery(promoting(sae, word));
  return (
    <Answered query={query}>
      {(answer) => {
        if ("job" in answer) {
          return <JobRow id={answer.job.id} name="The promoted tokens of all features" onDone={() => void query.refetch()} />;
        }
        if (answer.features.length === 0) {
          return <p className="empty">No feature has all tokens of this word among its most promoted ones.</p>;
        }
        return (
          <>
            <p className="quiet" role="status">
              {count(answer.matched)} {answer.matched === 1 ? "feature promotes" : "features promote"} the word. The bar is
              what one unit of the feature adds to its logit.
            </p>
            <Bars
              label={`Features that promote ${word}`}
              bars={answer.features.map(({ feature_idx, label, value }) => ({
                id: String(feature_idx),
                label: (
                  <Link to={featurePath({ sae, layer, index: feature_idx })} title={placeName(layer, feature_idx)}>
                    {label ?? placeName(layer, feature_idx)}
                  </Link>
                ),
                value: value ?? 0,
              }))}
            />
          </>
        );
      }}
    </Answered>
  );
}
