// What corpora say about a feature: how often it fires, how strongly, and where.
import { useState } from "react";
import type { UseQueryResult } from "@tanstack/react-query";
import { Link } from "react-router";
import type { Feature } from "../../api/features";
import { ExampleTokens } from "../../parts/ExampleTokens";
import { Figure } from "../../parts/Figure";
import { Histogram } from "../../parts/Histogram";
import { QueryPanel } from "../../parts/Panel";
import { count, decimal, percent } from "../../rules/bytes";
import { binned } from "../../rules/histogram";

type Statistics = NonNullable<Feature["corpora"]>[number];

/** The examples that are shown of each kind before a person asks for more. */
const FIRST = 5;

export function OverCorpora({ query }: { query: UseQueryResult<Feature> }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const all = query.data?.corpora ?? [];
  // the largest corpus says most
  const largest = all.reduce<Statistics | undefined>(
    (best, one) => (best === undefined || one.tokens > best.tokens ? one : best),
    undefined,
  );
  const shown = all.find(({ corpus_id }) => corpus_id === chosen) ?? largest;
  return (
    <QueryPanel
      title="Over a corpus"
      query={query}
      about="How often the feature fires, how strongly where it does, and in which texts."
      isEmpty={() => shown === undefined}
      empty={
        <>
          No corpus was read for this SAE. <Link to="/corpora">Read one.</Link>
        </>
      }
      actions={
        all.length > 1 &&
        shown !== undefined && (
          <select aria-label="Corpus" value={shown.corpus_id} onChange={(event) => setChosen(event.target.value)}>
            {all.map(({ corpus_id, name }) => (
              <option key={corpus_id} value={corpus_id}>
                {name}
              </option>
            ))}
          </select>
        )
      }
    >
      {() => shown !== undefined && <One key={shown.corpus_id} statistics={shown} />}
    </QueryPanel>
  );
}

function One({ statistics }: { statistics: Statistics }) {
  const { name, tokens, density, max, quantiles, histogram, examples } = statistics;
  if (max === null || histogram === null) {
    return (
      <p className="empty">
        The feature never fires in the {count(tokens)} tokens of {name}.
      </p>
    );
  }
  return (
    <div className="over-corpus">
      <div className="flow">
        <div className="figures">
          <Figure label="tokens" value={count(tokens)} />
          <Figure label="density" value={percent(density, 3)} />
          <Figure label="median" value={decimal(quantiles["0.5"] ?? null)} />
          <Figure label="99 % quantile" value={decimal(quantiles["0.99"] ?? null)} />
          <Figure label="largest" value={decimal(max)} />
        </div>
        <Histogram
          label={`Activations of the feature in ${name}`}
          distribution={binned(histogram, Math.round(tokens * (1 - density)))}
          noun="token"
        />
      </div>
      <div className="flow">
        <Examples title="Strongest examples" of={examples.filter((one) => one.is_strongest)} scale={max} />
        <Examples title="Examples from strong to weak" of={examples.filter((one) => !one.is_strongest)} scale={max} />
      </div>
    </div>
  );
}

function Examples({ title, of, scale }: { title: string; of: Statistics["examples"]; scale: number }) {
  const [isAll, setAll] = useState(false);
  if (of.length === 0) return null;
  return (
    <section className="flow">
      <h3>{title}</h3>
      <ol className="contexts" aria-label={title}>
        {(isAll ? of : of.slice(0, FIRST)).map((one) => (
          <li key={`${one.text_index} ${one.position}`}>
            <span className="context-value" title={`Text ${one.text_index}, token ${one.position}`}>
              {decimal(one.value)}
            </span>
            <ExampleTokens tokens={one.tokens} at={one.at} scale={scale} />
          </li>
        ))}
      </ol>
      {!isAll && of.length > FIRST && (
        <button type="button" className="small" onClick={() => setAll(true)}>
          Show all {of.length}
        </button>
      )}
    </section>
  );
}
