// The field of the search, and the features whose labels fit.
import { useEffect, useRef, useState } from "react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "react-router";
import { labelled, type Way } from "../../api/features";
import { useCanRank } from "../../api/corpora";
import type { Sae } from "../../api/saes";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { count } from "../../rules/bytes";
import { featurePath, indexIn, placeName } from "../../rules/places";
import { useShortcut } from "../../shortcuts";
import { OtherWays } from "./ByText";
import { Sampled } from "./Sampled";

/** The time without a further key after which the service is asked, in milliseconds. */
const SETTLED = 200;

export function Search({
  sae,
  layer,
  words,
  onWords,
  seed,
  onSeed,
  onWay,
}: {
  sae: Sae;
  layer: number | null;
  words: string;
  onWords: (words: string) => void;
  /** Which features are shown before words are written. */
  seed: number;
  onSeed: (seed: number) => void;
  /** Search for the same words in another way. */
  onWay: (way: Way) => void;
}) {
  const hasExamples = useCanRank(layer === null ? null : { sae_id: sae.id, layer });
  const [draft, setDraft] = useState(words);
  const [isListing, setListing] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const navigate = useNavigate();
  useShortcut("find", () => field.current?.focus());
  useEffect(() => {
    if (draft === words) return undefined;
    const timer = setTimeout(() => onWords(draft), SETTLED);
    return () => clearTimeout(timer);
  }, [draft, words, onWords]);
  const asked = indexIn(draft);
  const index = asked !== null && asked < (sae.d_sae ?? 0) ? asked : null;
  const path = (feature: number) => featurePath({ sae: sae.id, layer, index: feature });
  return (
    <form
      role="search"
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        if (index !== null) void navigate(path(index));
        else onWords(draft);
      }}
    >
      <input
        ref={field}
        type="search"
        aria-label="Words of a label, or an index"
        placeholder="sea, or 90"
        maxLength={200}
        value={draft}
        onChange={(event) => setDraft(event.target.value)}
      />
      {asked !== null && (
        <p aria-live="polite">
          {index === null ? (
            <span className="quiet">The last index of this SAE is {count((sae.d_sae ?? 1) - 1)}.</span>
          ) : (
            <Link to={path(index)} className="strong">
              Feature {placeName(layer, index)}
            </Link>
          )}
        </p>
      )}
      {words.trim() === "" && asked === null && hasExamples ? (
        <>
          <Sampled sae={sae} layer={layer} seed={seed} onSeed={onSeed} path={path} />
          <details onToggle={(event) => setListing(event.currentTarget.open)}>
            <summary>All labels</summary>
            {isListing && <Labelled sae={sae.id} words="" layer={layer} path={path} onWay={onWay} />}
          </details>
        </>
      ) : (
        <Labelled sae={sae.id} words={words.trim()} layer={layer} path={path} onWay={onWay} />
      )}
    </form>
  );
}

function Labelled({
  sae,
  words,
  layer,
  path,
  onWay,
}: {
  sae: string;
  words: string;
  layer: number | null;
  path: (index: number) => string;
  onWay: (way: Way) => void;
}) {
  const pages = useInfiniteQuery(labelled(sae, words));
  if (pages.data === undefined) {
    if (pages.error !== null) return <ErrorNotice error={pages.error} onRetry={() => void pages.refetch()} />;
    return (
      <p className="loading" role="status">
        Loading
      </p>
    );
  }
  const first = pages.data.pages[0];
  const labels = pages.data.pages.flatMap((page) => page.labels);
  if (first === undefined || first.total === 0) {
    return (
      <p className="empty">
        No feature of this SAE has a label yet. Open a feature by its index and give it one, or import labels with{" "}
        <code>POST /api/saes/{sae}/labels</code>. <Link to="/corpora">Read a corpus</Link> to see texts in which features
        are strong.
      </p>
    );
  }
  if (first.matched === 0) {
    return (
      <>
        <p className="empty">No label has all of these words.</p>
        <OtherWays way="labels" onWay={onWay} />
      </>
    );
  }
  return (
    <>
      <p className="quiet" role="status">
        {words === ""
          ? `${count(first.total)} features have a label.`
          : `${count(first.matched)} of ${count(first.total)} labels have these words.`}
      </p>
      <ul className="feature-list">
        {labels.map(({ feature_idx, label }) => (
          <li key={feature_idx}>
            <Link to={path(feature_idx)}>{label}</Link>
            <span className="place">{placeName(layer, feature_idx)}</span>
          </li>
        ))}
      </ul>
      {pages.hasNextPage && (
        <div className="row">
          <button type="button" disabled={pages.isFetchingNextPage} onClick={() => void pages.fetchNextPage()}>
            Show more
          </button>
          <span className="quiet">
            {count(labels.length)} of {count(first.matched)} are shown
          </span>
        </div>
      )}
    </>
  );
}
