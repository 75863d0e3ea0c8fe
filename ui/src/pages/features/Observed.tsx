// The values of a feature in the kept records of monitoring.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { monitoring, observed } from "../../api/monitoring";
import { Histogram } from "../../parts/Histogram";
import { Answered, Panel } from "../../parts/Panel";
import { count } from "../../rules/bytes";
import { distribution } from "../../rules/histogram";

export function Observed({ sae, index }: { sae: string; index: number }) {
  const state = useQuery(monitoring);
  return (
    <Panel title="Observed values" about="At the last token of each answer, in the records that are kept.">
      <Answered
        query={state}
        isEmpty={({ sae_id }) => sae_id !== sae}
        empty="Only the SAE that was attached first is monitored."
      >
        {() => <Values sae={sae} index={index} />}
      </Answered>
    </Panel>
  );
}

function Values({ sae, index }: { sae: string; index: number }) {
  const query = useQuery(observed(index));
  return (
    <Answered query={query}>
      {({ records }) => {
        const values = records
          .filter((record) => record.sae_id === sae)
          .flatMap((record) => record.activations.filter((one) => one.feature_index === index))
          .map((one) => one.activation);
        if (values.length === 0) {
          return (
            <p className="empty">
              No record has a value of this feature yet. <Link to="/live">Switch monitoring on</Link>, and let the model
              write.
            </p>
          );
        }
        return (
          <Histogram
            label={`Values of the feature in ${count(values.length)} records`}
            distribution={distribution(values)}
          />
        );
      }}
    </Answered>
  );
}
