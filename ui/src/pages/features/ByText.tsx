// The searches for features that are no search of labels: by a word that they promote, by a word at which they peak in a
// corpus, or by a text on which they fire. The first one by promoted tokens begins a job, so they are asked for with a button.
import { useRef, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { found, type Way } from "../../api/features";
import { Bars } from "../../parts/Bars";
import { exampleBeneath } from "../../parts/Example";
import { Answered } from "../../parts/Panel";
import { count, percent } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";
import { chipText } from "../../rules/tokens";
import { useShortcut } from "../../shortcuts";
import { JobRow } from "../jobs/JobRow";

interface Words {
  field: string;
  placeholder: string;
  /** What is said before the first search. */
  before: string;
  none: string;
  list: (word: string) => string;
  says: (matched: string) => string;
}

const WORDS: Record<Way, Words> = {
  promotes: {
    field: "A word that the feature promotes",
    placeholder: "waves",
    before:
      "The first search in an SAE computes the promoted tokens of all its features, beside running requests. Later ones are answered at once.",
    none: "No feature has all tokens of this word among its most promoted ones.",
    list: (word) => `Features that promote ${word}`,
    says: (matched) => `${matched} promote the word. The bar is what one unit of the feature adds to its logit.`,
  },
  examples: {
    field: "A word at which the feature is strongest",
    placeholder: "waves",
    before: "The examples of the newest corpus are searched for features that are strongest inside the word.",
    none: "No example of the newest corpus is strongest inside this word.",
    list: (word) => `Features that are strongest at ${word}`,
    says: (matched) => `${matched} peak at the word. The bar is the activation there over the largest one of the feature.`,
  },
  text: {
    field: "A text on which the feature fires",
    placeholder: "The boat sailed over the waves",
    before: "The loaded model reads the text without steering.",
    none: "No feature fires on this text.",
    list: () => "Features that fire on the text",
    says: (matched) => `${matched} fire on the text. The bar is the largest activation on it.`,
  },
};

export function ByText({
  sae,
  layer,
  way,
  word,
  onWord,
  onWay,
}: {
  sae: string;
  layer: number | null;
  way: Way;
  word: string;
  onWord: (word: string) => void;
  /** Search for the same word in another way. */
  onWay: (way: Way) => void;
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
          aria-label={WORDS[way].field}
          placeholder={WORDS[way].placeholder}
          maxLength={way === "text" ? 4000 : 200}
          value={draft}
          onChange={(event) => setDraft(event.target.value)}
        />
        <button type="submit" className="primary" disabled={written === ""}>
          Search
        </button>
      </div>
      {asked === "" ? (
        <p className="empty">{WORDS[way].before}</p>
      ) : (
        <Found sae={sae} layer={layer} way={way} word={asked} onWay={onWay} />
      )}
    </form>
  );
}

function Found({
  sae,
  layer,
  way,
  word,
  onWay,
}: {
  sae: string;
  layer: number | null;
  way: Way;
  word: string;
  onWay: (way: Way) => void;
}) {
  const query = useQuery(found(sae, way, word));
  return (
    <Answered query={query}>
      {(answer) => {
        if ("job" in answer) {
          return <JobRow id={answer.job.id} name="The promoted tokens of all features" onDone={() => void query.refetch()} />;
        }
        if (answer.features.length === 0) {
          return (
            <>
              <p className="empty">{WORDS[way].none}</p>
              <OtherWays way={way} onWay={onWay} />
            </>
          );
        }
        return (
          <>
            <p className="quiet" role="status">
              {WORDS[way].says(`${count(answer.matched)} ${answer.matched === 1 ? "feature" : "features"}`)}
            </p>
            <Bars
              label={WORDS[way].list(word)}
              {...(way === "examples" ? { format: percent, scale: 1 } : {})}
              bars={answer.features.map((one) => ({
                id: String(one.feature_idx),
                label: (
                  <Link
                    to={featurePath({ sae, layer, index: one.feature_idx })}
                    title={placeName(layer, one.feature_idx)}
                  >
                    {one.label ?? placeName(layer, one.feature_idx)}
                    {one.token !== undefined && <code className="token">{chipText(one.token)}</code>}
                  </Link>
                ),
                value: (way === "examples" ? one.share : one.value) ?? 0,
                beneath: exampleBeneath(one.example),
              }))}
            />
          </>
        );
      }}
    </Answered>
  );
}

const OTHERS: Record<Way, string> = {
  examples: "Look where features are strongest",
  promotes: "Look what features promote",
  text: "Read it as a text",
};

/** The searches that may find something where one found nothing. */
export function OtherWays({ way, onWay }: { way: Way | "labels"; onWay: (way: Way) => void }) {
  return (
    <div className="row">
      {(Object.keys(OTHERS) as Way[])
        .filter((other) => other !== way)
        .map((other) => (
          <button key={other} type="button" className="small" onClick={() => onWay(other)}>
            {OTHERS[other]}
          </button>
        ))}
    </div>
  );
}
