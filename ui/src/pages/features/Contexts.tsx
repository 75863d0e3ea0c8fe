// The texts in which a feature was strongest, where the operator keeps them.
import { useQuery } from "@tanstack/react-query";
import { contexts, monitoring, type Contexts as Answer } from "../../api/monitoring";
import { Answered, Panel } from "../../parts/Panel";
import { SpanText } from "../../parts/SpanText";
import { count, decimal } from "../../rules/bytes";
import { atWords } from "../../rules/firing";

const SHOWN = 6;

export function Contexts({ sae, index }: { sae: string; index: number }) {
  const state = useQuery(monitoring);
  return (
    <Panel title="Strongest contexts" about="The token at which the feature was strong, in the text around it.">
      <Answered
        query={state}
        isEmpty={({ sae_id }) => sae_id !== sae}
        empty="Only the SAE that was attached first is monitored."
      >
        {() => <Strongest index={index} />}
      </Answered>
    </Panel>
  );
}

function partsOf({ context_parts, context_text }: Answer["contexts"][number]) {
  if (context_parts !== null) return atWords(context_parts);
  return context_text === null ? null : { before: context_text, span: "", after: "" };
}

function Strongest({ index }: { index: number }) {
  const query = useQuery(contexts(index, SHOWN));
  return (
    <Answered query={query}>
      {(answer) => {
        if (answer.size === 0) {
          return (
            <p className="empty">
              Texts of users are not kept. The operator keeps those of the last monitored tokens with the setting{" "}
              <code>MONITORING_CONTEXTS</code>.
            </p>
          );
        }
        if (answer.contexts.length === 0) {
          return (
            <p className="empty">
              The feature was not active at the last {count(answer.kept)} monitored tokens. The last {count(answer.size)}{" "}
              are kept.
            </p>
          );
        }
        return (
          <>
            <ol className="contexts" aria-label="Strongest contexts">
              {answer.contexts.map((one) => (
                <li key={`${one.request_id} ${one.choice} ${one.token_position}`}>
                  <span className="context-value">{decimal(one.activation)}</span>
                  <SpanText parts={partsOf(one)} />
                </li>
              ))}
            </ol>
            <p className="quiet">
              Of the last {count(answer.kept)} monitored tokens. The last {count(answer.size)} are kept, in memory only.
            </p>
          </>
        );
      }}
    </Answered>
  );
}
