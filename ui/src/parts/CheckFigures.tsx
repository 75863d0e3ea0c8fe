// The self-check of an SAE as bars, with a mark where the checkpoint claims another figure.
import { Link } from "react-router";
import { checkFigures, l0Of, l0Words, readWords, type CheckFigure, type Known } from "../rules/check";
import { count, decimal } from "../rules/bytes";
import { MEANS } from "../rules/words";
import { Term } from "./Term";

export function CheckFigures({ known }: { known: Known }) {
  const { check, over, k, claimedL0 } = known;
  if (Object.keys(check).length === 0 && over === null) return <p className="quiet">The self-check was left out.</p>;
  const words = l0Words(l0Of(known), claimedL0);
  return (
    <figure className="check">
      <table>
        <caption className="only-read">Self-check beside the claims of the checkpoint</caption>
        <thead>
          <tr>
            <th scope="col">self-check</th>
            <th scope="col">measured</th>
            <th scope="col">
              <Term means={MEANS.claimed}>claimed</Term>
            </th>
            <th scope="col" className="check-scale">
              scale
            </th>
          </tr>
        </thead>
        <tbody>
          {checkFigures(known).map((figure) => (
            <tr key={figure.name}>
              <th scope="row">
                <Term means={figure.about}>{figure.name}</Term>
              </th>
              <td className="strong">{figure.says}</td>
              <td>{figure.claim ?? <span className="quiet">–</span>}</td>
              <td className="check-scale">{figure.scale !== null && <Track figure={figure} scale={figure.scale} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <figcaption className="quiet">
        {words !== null && <>L0 is {words}. </>}
        {k === null && (claimedL0 === null ? "The checkpoint claims no L0. " : "The mark is the claim of the checkpoint. ")}
        {readWords(known).join(" ")}{" "}
        {over !== null && (
          <>
            {k === null ? "L0 and the features that fire are" : "The features that fire are"} those of the corpus{" "}
            <Link to="/corpora">{over.name}</Link>, {count(over.tokens)} tokens.
          </>
        )}
      </figcaption>
    </figure>
  );
}

function Track({ figure, scale }: { figure: CheckFigure; scale: number }) {
  const [from, to] = figure.drawn ?? [0, 0];
  const share = (value: number) => `${Math.min(100, (100 * value) / scale)}%`;
  return (
    <span className="check-line">
      <span className="check-track" aria-hidden="true">
        {figure.drawn !== null && (
          <span
            className="check-fill"
            style={{ insetInlineStart: share(from), inlineSize: `max(3px, ${share(to - from)})` }}
          />
        )}
        {figure.claimed !== null && <span className="check-claim" style={{ insetInlineStart: share(figure.claimed) }} />}
      </span>
      <span className="quiet check-end">{scale < 10 ? decimal(scale, 1) : count(Math.round(scale))}</span>
    </span>
  );
}
