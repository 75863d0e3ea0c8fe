// The features of a comparison, once its job is done.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { contrastOf, type Contrast, type ContrastedFeature } from "../../api/contrast";
import { isEnded, job as asked } from "../../api/jobs";
import { Example } from "../../parts/Example";
import { Panel } from "../../parts/Panel";
import { count, DASH, decimal, percent } from "../../rules/bytes";
import { featurePath, placeName } from "../../rules/places";
import { chipText } from "../../rules/tokens";
import { JobRow } from "../jobs/JobRow";
import { SteerLink } from "./SteerLink";

export function Result({ id }: { id: string }) {
  const job = useQuery(asked(id)).data;
  const found = job === undefined || !isEnded(job) ? null : contrastOf(job);
  if (found === null) {
    return (
      <Panel title="Features">
        <JobRow id={id} name="The comparison" onDone={() => undefined} />
      </Panel>
    );
  }
  const { texts, compared, features } = found;
  return (
    <Panel
      title="Features"
      about={`${count(texts.positives)} texts with the concept and ${count(texts.negatives)} without it, ${count(texts.held_out)} of them held out. ${count(compared)} features fire in at least one text, and are compared.`}
    >
      {features.length === 0 ? (
        <p className="empty">No feature fires in these texts.</p>
      ) : (
        <>
          <div className="scroll-x" tabIndex={0} role="group" aria-label="Features that tell the texts apart">
            <Rows found={found} />
          </div>
          <p className="quiet">
            AUC is the probability that a text with the concept has the larger value: 0.5 is chance, 1 always. The bar is its
            95 % interval. <b>Held out</b> is the same on texts that had no part in the choice: the first of thousands look
            better than they are, and this figure does not.
          </p>
          <p className="quiet">
            The tokens under a name are what the feature promotes when it is turned up, and the text is where it is strongest in
            the newest corpus. A feature that fires with a concept may write something else: measure it before you steer with it.
          </p>
        </>
      )}
    </Panel>
  );
}

function Rows({ found: { features, sae_id, layer } }: { found: Contrast }) {
  return (
    <table className="numbers-table contrasted">
      <thead>
        <tr>
          <th scope="col">feature</th>
          <th scope="col">AUC</th>
          <th scope="col">held out</th>
          <th scope="col">mean with</th>
          <th scope="col">mean without</th>
          <th scope="col">fires with</th>
          <th scope="col">fires without</th>
          <th scope="col">p, corrected</th>
          <th scope="col">
            <span className="only-read">steer</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {features.map((one) => (
          <tr key={one.index}>
            <th scope="row">
              <Link to={featurePath({ sae: sae_id, layer, index: one.index })}>{one.label ?? "no label"}</Link>{" "}
              <span className="place">{placeName(layer, one.index)}</span>
              {one.promotes !== null && (
                <span className="promoted">
                  <span className="only-read">promotes </span>
                  {one.promotes.map((token) => (
                    <code key={token} className="token">
                      {chipText(token)}
                    </code>
                  ))}
                </span>
              )}
              <Example example={one.example ?? null} />
            </th>
            <td>
              <Auc feature={one} />
            </td>
            <td>{decimal(one.auc_held_out)}</td>
            <td>{decimal(one.mean_positive, 1)}</td>
            <td>{decimal(one.mean_negative, 1)}</td>
            <td>{percent(one.share_positive)}</td>
            <td>{percent(one.share_negative)}</td>
            <td>{one.p_corrected < 0.001 ? "< 0.001" : decimal(one.p_corrected, 3)}</td>
            <td>
              <SteerLink sae={{ sae_id, layer }} index={one.index} name={one.label ?? `feature ${one.index}`} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Auc({ feature: { auc, auc_low, auc_high } }: { feature: ContrastedFeature }) {
  const isKnown = auc_low !== null && auc_high !== null;
  return (
    <span className="auc" title={isKnown ? `95 % interval: ${decimal(auc_low)} to ${decimal(auc_high)}` : `interval ${DASH}`}>
      {decimal(auc)}
      <span className="auc-track" aria-hidden="true">
        {isKnown && (
          <span
            className="auc-span"
            style={{ insetInlineStart: `${100 * auc_low}%`, inlineSize: `${100 * (auc_high - auc_low)}%` }}
          />
        )}
        <span className="auc-mark" style={{ insetInlineStart: `${100 * auc}%` }} />
      </span>
      {isKnown && (
        <span className="only-read">
          , from {decimal(auc_low)} to {decimal(auc_high)}
        </span>
      )}
    </span>
  );
}
