// Some features of an SAE, each with the text of a corpus in which it is strongest.
import { useQueries } from "@tanstack/react-query";
import { Link } from "react-router";
import { feature, type Feature } from "../../api/features";
import type { Sae } from "../../api/saes";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { ExampleTokens } from "../../parts/ExampleTokens";
import { percent } from "../../rules/bytes";
import { placeName } from "../../rules/places";
import { drawn, largestOf, telling } from "../../rules/sampled";

export function Sampled({
  sae,
  layer,
  seed,
  onSeed,
  path,
}: {
  sae: Sae;
  layer: number | null;
  seed: number;
  onSeed: (seed: number) => void;
  path: (index: number) => string;
}) {
  const queries = useQueries({ queries: drawn(sae.d_sae ?? 0, seed).map((index) => ({ ...feature(sae.id, index), refetchInterval: false as const })) });
  const error = queries.find((query) => query.error !== null)?.error ?? null;
  if (error !== null) return <ErrorNotice error={error} onRetry={() => queries.forEach((query) => void query.refetch())} />;
  const found = queries.flatMap(({ data }) => (data === undefined ? [] : [data]));
  if (found.length < queries.length) {
    return (
      <p className="loading" role="status">
        Loading
      </p>
    );
  }
  const shown = telling(found.map((one) => ({ ...one, corpora: one.corpora ?? [] })));
  return (
    <section className="flow" aria-labelledby="sampled">
      <div className="row spread">
        <h3 id="sampled">Some features, and where each is strongest</h3>
        <button type="button" className="small" onClick={() => onSeed(seed + 1)}>
          Show others
        </button>
      </div>
      {shown.length === 0 ? (
        <p className="empty">None of the features that were drawn fires in the corpus.</p>
      ) : (
        <ul className="sampled" aria-labelledby="sampled">
          {shown.map((one) => (
            <One key={one.feature_idx} feature={one} layer={layer} path={path} />
          ))}
        </ul>
      )}
    </section>
  );
}

function One({ feature, layer, path }: { feature: Feature; layer: number | null; path: (index: number) => string }) {
  const over = largestOf(feature.corpora ?? []);
  const example = over?.examples.find(({ is_strongest }) => is_strongest) ?? over?.examples[0];
  const place = placeName(layer, feature.feature_idx);
  return (
    <li>
      <p className="row spread">
        <Link to={path(feature.feature_idx)}>{feature.label ?? place}</Link>
        <span className="quiet">
          {feature.label !== null && <>{place}, </>}
          fires at {percent(over?.density, 2)} of tokens
        </span>
      </p>
      {example !== undefined && <ExampleTokens tokens={example.tokens} at={example.at} scale={over?.max ?? example.value} />}
    </li>
  );
}
