// One feature: its label, its figures, its neighbours, and what was observed of it.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { feature, type Feature } from "../../api/features";
import { attachments } from "../../api/queries";
import { saes } from "../../api/saes";
import { Figure } from "../../parts/Figure";
import { Answered, QueryPanel } from "../../parts/Panel";
import { count, decimal, percent } from "../../rules/bytes";
import { featurePath, livePath, placeName, steerPath, type FeaturePlace } from "../../rules/places";
import { Contexts } from "./Contexts";
import { Effect } from "./Effect";
import { Label } from "./Label";
import { Nearest } from "./Nearest";
import { Observed } from "./Observed";
import { OverCorpora } from "./OverCorpora";
import { Writes } from "./Writes";

export function FeatureDetails({ place }: { place: FeaturePlace }) {
  const { sae, index } = place;
  const query = useQuery(feature(sae, index));
  const record = useQuery(saes).data?.saes.find((one) => one.id === sae);
  // one SAE may be attached at several layers
  const attached = useQuery(attachments).data?.entries.filter((entry) => entry.sae_id === sae) ?? [];
  const isThere = attached.some((entry) => entry.layer === place.layer);
  const layer = isThere ? place.layer : (query.data?.layer ?? null);
  const last = (record?.d_sae ?? 0) - 1;
  const step = (to: number) => featurePath({ sae, layer, index: to });
  return (
    <div className="page">
      <nav className="row spread" aria-label="Place">
        <p className="quiet">
          <Link to={`/features?sae=${encodeURIComponent(sae)}`}>Features</Link> of {record?.name ?? sae}
          {query.data !== undefined && query.data.layer === null && ", which is not attached"}
        </p>
        <p className="row">
          {index > 0 && <Link to={step(index - 1)}>← {placeName(layer, index - 1)}</Link>}
          {index < last && <Link to={step(index + 1)}>{placeName(layer, index + 1)} →</Link>}
        </p>
      </nav>
      <Answered query={query}>
        {(data) => (
          <>
            <header className="page-head feature-head">
              <Label feature={data} place={placeName(layer, index)} />
              <p className="row">
                {layer !== null && (
                  <>
                    <Link className="button primary" to={steerPath(sae, layer, index, data.typical_strength)}>
                      Steer with this
                    </Link>
                    <Link className="button" to={livePath([index])}>
                      See it live
                    </Link>
                  </>
                )}
              </p>
            </header>
            <Writes query={query} />
            <OverCorpora query={query} />
            {isThere && layer !== null && <Effect place={{ sae, layer, index }} typical={data.typical_strength} />}
            <div className="columns">
              <div className="column">
                <QueryPanel
                  title="Statistics"
                  query={query}
                  about="Over all monitored tokens since the statistics began."
                  isEmpty={({ statistics }) => statistics === null}
                  empty={
                    <p>
                      This feature was not monitored yet. <Link to="/live">Switch monitoring on.</Link>
                    </p>
                  }
                >
                  {({ statistics }) => statistics !== null && <Statistics statistics={statistics} />}
                </QueryPanel>
                <Observed sae={sae} index={index} />
                <QueryPanel title="Lengths" query={query} about="In the units of the model's residual stream.">
                  {(facts) => <Lengths feature={facts} />}
                </QueryPanel>
              </div>
              <div className="column">
                <Contexts sae={sae} index={index} />
                <Nearest sae={sae} index={index} layer={layer} />
              </div>
            </div>
          </>
        )}
      </Answered>
    </div>
  );
}

function Statistics({ statistics }: { statistics: NonNullable<Feature["statistics"]> }) {
  return (
    <div className="figures">
      <Figure label="count of tokens" value={count(statistics.count)} />
      <Figure label="active ratio" value={percent(statistics.active_ratio, 1)}>
        <meter aria-label="Active ratio" min={0} max={1} value={statistics.active_ratio} />
      </Figure>
      <Figure label="mean" value={decimal(statistics.mean)} />
      <Figure label="standard deviation" value={decimal(statistics.std)} />
      <Figure label="min" value={decimal(statistics.min)} />
      <Figure label="max" value={decimal(statistics.max)} />
    </div>
  );
}

function Lengths({ feature }: { feature: Feature }) {
  return (
    <div className="figures">
      <Figure label="decoder norm" value={decimal(feature.decoder_norm)} />
      <Figure label="encoder norm" value={decimal(feature.encoder_norm)} />
      <Figure label="encoder bias" value={decimal(feature.encoder_bias)} />
      <Figure label="threshold" value={decimal(feature.threshold)} />
      <Figure label="residual norm" value={decimal(feature.residual_norm)} />
      <Figure label="typical strength" value={decimal(feature.typical_strength)} />
    </div>
  );
}
