// Whether an answer that was made again is the recorded one, where it differs first, and why it may.
import type { Replayed } from "../../api/runs";

const PARTS: Record<string, string> = {
  text: "the text",
  scores: "the scores",
  finish_reason: "what ended it",
  tokens: "the number of tokens",
  choices: "the number of answers",
};

export function Verdict({ replayed: { equal, first_difference: found, reasons } }: { replayed: Replayed }) {
  return (
    <div className={`notice ${equal ? "notice-good" : "notice-warn"} flow`} role="status">
      <p>
        <strong>{equal ? "The same answer." : "Another answer."}</strong>{" "}
        {equal
          ? "Text, end, number of tokens and scores are equal."
          : found && `Answer ${found.choice + 1} differs in ${PARTS[found.part] ?? found.part}${placeOf(found.part, found.at)}.`}
      </p>
      {found && (
        <dl className="run-difference">
          <div>
            <dt className="quiet">recorded</dt>
            <dd>{found.recorded}</dd>
          </div>
          <div>
            <dt className="quiet">made again</dt>
            <dd>{found.replayed}</dd>
          </div>
        </dl>
      )}
      {reasons.length > 0 && (
        <>
          <p>{equal ? "What is not as it was:" : "What may be the reason:"}</p>
          <ul className="run-reasons">
            {reasons.map(({ code, message }) => (
              <li key={message}>
                <code>{code}</code> {message}
              </li>
            ))}
          </ul>
        </>
      )}
      {!equal && reasons.length === 0 && <p>Model, SAEs, steering, versions and machine are as they were.</p>}
    </div>
  );
}

function placeOf(part: string, at: number | null): string {
  if (at === null) return "";
  return part === "text" ? ` from character ${at} on` : ` at number ${at}`;
}
