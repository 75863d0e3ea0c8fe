// The answers of the lens as a table, the last layer at the top, and those of one token in full.
import { useState, type CSSProperties } from "react";
import type { LensAnswer } from "../../api/lens";
import { percent } from "../../rules/bytes";
import { chipText } from "../../rules/tokens";

export function LensGrid({ answer: { tokens, layers } }: { answer: LensAnswer }) {
  const [at, setAt] = useState(tokens.length - 1);
  const rows = layers.toReversed();
  const place = Math.min(at, tokens.length - 1);
  return (
    <div className="flow">
      <div className="lens-scroll scroll-x" tabIndex={0} role="group" aria-label="The most probable next token after each layer">
        <table className="lens">
          <thead>
            <tr>
              <th scope="col">after</th>
              {tokens.map(({ token }, position) => (
                <th key={position} scope="col">
                  <button
                    type="button"
                    className="small"
                    aria-pressed={position === place}
                    aria-label={`Open token ${position}: ${token}`}
                    onClick={() => setAt(position)}
                  >
                    {chipText(token)}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(({ layer, positions }) => (
              <tr key={layer}>
                <th scope="row">layer {layer}</th>
                {positions.map(([first], position) => (
                  <td
                    key={position}
                    data-right={(first !== undefined && first.token_id === tokens[position + 1]?.token_id) || undefined}
                    style={{ "--v": first?.prob ?? 0 } as CSSProperties}
                  >
                    <span className="lens-token">{first === undefined ? "" : chipText(first.token)}</span>
                    <span className="lens-part">{percent(first?.prob)}</span>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className="quiet">Underlined: the token that follows in the text. Press a token above to open it.</p>
      <section aria-label="The open token" className="flow">
        <h3>
          After <code className="token">{chipText(tokens[place]?.token ?? "")}</code>, token {place}
        </h3>
        <div className="scroll-x" tabIndex={0} role="group" aria-label="The most probable tokens after the open one">
          <table className="lens-one">
            <tbody>
              {rows.map(({ layer, positions }) => (
                <tr key={layer}>
                  <th scope="row">layer {layer}</th>
                  {(positions[place] ?? []).map(({ token_id, token, prob }) => (
                    <td key={token_id}>
                      <code className="token">{chipText(token)}</code> <span className="quiet">{percent(prob, 1)}</span>
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </div>
  );
}
