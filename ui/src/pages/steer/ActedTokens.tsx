// The tokens of an answer, marked where its edits acted.
import { useState } from "react";
import { actedAt } from "../../rules/acted";
import type { AnswerTokens, Report } from "../../rules/comparison";
import { chipText, endsLine } from "../../rules/tokens";

const ANY = -1;

export function ActedTokens({ answer, report, names }: { answer: AnswerTokens; report: Report; names: readonly string[] }) {
  const [chosen, setChosen] = useState(ANY);
  const acted = actedAt(answer, report);
  const isMarked = (places: readonly number[]) => (chosen === ANY ? places.length > 0 : places.includes(chosen));
  const isCut = report.edits.some(({ at }) => at === null);
  return (
    <div className="acted-tokens">
      {names.length > 1 && (
        <label className="field">
          Marked are the tokens at which acted
          <select value={chosen} onChange={(event) => setChosen(Number(event.target.value))}>
            <option value={ANY}>any edit</option>
            {names.map((name, place) => (
              <option key={place} value={place}>
                {place + 1}: {name}
              </option>
            ))}
          </select>
        </label>
      )}
      <p role="group" aria-label="Tokens at which the edits acted" tabIndex={0}>
        {answer.texts.map((text, index) => {
          const places = acted[index] ?? [];
          const shown = chipText(text);
          return (
            <span key={index}>
              {isMarked(places) ? (
                <mark title={`position ${answer.first + index}: ${editsSaid(places)}`}>{shown}</mark>
              ) : (
                <span title={`position ${answer.first + index}: no edit`}>{shown}</span>
              )}
              {endsLine(text) && <br />}
            </span>
          );
        })}
      </p>
      <p className="quiet">
        {names.length > 1 ? "" : "Marked are the tokens at which it acted. "}
        An edit at a token changes what the model writes after it. The last token is read by no pass.
        {isCut && " An edit with more than 1000 runs of tokens is not marked."}
      </p>
    </div>
  );
}

function editsSaid(places: readonly number[]): string {
  return `${places.length === 1 ? "edit" : "edits"} ${places.map((place) => place + 1).join(", ")}`;
}
