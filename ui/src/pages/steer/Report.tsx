// What the edits of an answer did, as the service counted it where they were made.
import type { EditReport, Report as Counted, Side } from "../../rules/comparison";
import { count, percent } from "../../rules/bytes";
import { sentence } from "../../rules/editWords";
import { ActedTokens } from "./ActedTokens";
import { useNames } from "./edits/useNames";

export function Report({
  edits,
  report,
  answer,
}: {
  edits: NonNullable<Side["edits"]>;
  report: Counted;
  answer: Side["answer"];
}) {
  const names = useNames(edits);
  const said = report.edits.map((one) => {
    const own = one.source === "request" ? edits[one.edit] : undefined;
    return own === undefined ? `${one.op}, of ${one.source}` : sentence(own, names);
  });
  return (
    <details className="report" open>
      <summary>What the edits did</summary>
      <ol aria-label="What the edits did">
        {report.edits.map((one, place) => (
          <li key={place}>
            <p>{said[place]}</p>
            <p className="quiet numbers">{counted(one)}</p>
          </li>
        ))}
      </ol>
      {answer !== undefined && <ActedTokens answer={answer} report={report} names={said} />}
      <p className="quiet">
        Tokens are counted from the beginning of the prompt. A change is a part of the length of the value.
        {report.changed && " An operator changed the steering meanwhile."}
      </p>
    </details>
  );
}

function counted({ evaluated, acted, first, last, max_change }: EditReport): string {
  if (acted === 0) return `acted at none of ${count(evaluated)} tokens`;
  const span = first === last ? `at ${first}` : `from ${first} to ${last}`;
  return `acted at ${count(acted)} of ${count(evaluated)} tokens, ${span}; largest change ${percent(max_change, 1)}`;
}
