// What the features before a token of an answer add to its logit.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { attribution, type Method } from "../../api/lens";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Segmented } from "../../parts/Segmented";
import { decimal } from "../../rules/bytes";
import type { Place } from "../../rules/steer";

const METHODS = [
  { value: "gradient", label: "Gradient", title: "All layers behind the SAE, by the gradient of the logit" },
  { value: "integrated", label: "Integrated", title: "The mean gradient while the features come in" },
  { value: "direct", label: "Direct", title: "The direct path from the SAE to the logits only" },
] as const;

/** `tokens` are the texts of all tokens of the answer and its prompt, and `at` is the place of the one that is asked for. */
export function WhyToken({ tokens, at, place }: { tokens: readonly string[]; at: number; place: Place }) {
  const [isOpen, setOpen] = useState(false);
  const [method, setMethod] = useState<Method>("gradient");
  const [written, setWritten] = useState("");
  const [against, setAgainst] = useState("");
  const { data, error, isFetching } = useQuery({
    ...attribution(tokens, at, against, method, { sae_id: place.sae_id, layer: place.layer }),
    enabled: isOpen,
  });
  if (!isOpen) {
    return (
      <button type="button" className="small" onClick={() => setOpen(true)}>
        Why this token?
      </button>
    );
  }
  const most = Math.max(0, ...(data?.features ?? []).map(({ contribution }) => Math.abs(contribution)));
  return (
    <section aria-label="Why this token">
      <Segmented label="Method of the attribution" options={METHODS} value={method} onChange={setMethod} />
      <form
        className="row"
        onSubmit={(event) => {
          event.preventDefault();
          setAgainst(written);
        }}
      >
        <input
          aria-label="Another token to compare with"
          placeholder="rather than…"
          size={10}
          value={written}
          onChange={(event) => setWritten(event.target.value)}
        />
        <button type="submit" className="small">
          Compare
        </button>
      </form>
      {error !== null && <ErrorNotice error={error} says="The logit was not attributed." />}
      {isFetching && <p className="quiet">Reading the text…</p>}
      {data !== undefined && (
        <>
          <p className="quiet">
            {data.position === at - 1
              ? `Without steering, the logit of ${JSON.stringify(data.target.token)} is ${decimal(data.whole)} above ${
                  data.against === null ? "the mean" : JSON.stringify(data.against.token)
                }. Method: ${data.method}.`
              : "The tokenizer reads this text otherwise, so that these figures are of another token."}
          </p>
          <ol className="token-features" aria-label="What adds most to its logit">
            {data.features.map(({ index, label, contribution }) => (
              <li key={index}>
                <span className="token-feature">
                  <span className="token-feature-name">
                    {label ?? <span className="quiet">no label</span>} <span className="place">#{index}</span>
                  </span>
                  <span className="token-feature-value">{signed(contribution)}</span>
                  <span
                    className="token-feature-bar"
                    style={{ inlineSize: `${most > 0 ? (100 * Math.abs(contribution)) / most : 0}%` }}
                  />
                </span>
              </li>
            ))}
          </ol>
          <p className="quiet">{explained(data)}</p>
        </>
      )}
    </section>
  );
}

/** What the sum of the contributions is a share of. */
function explained({ explained: share, method }: { explained: number | null; method: Method }): string {
  if (share === null) return "Nothing is explained, because the whole difference is 0.";
  return method === "direct"
    ? `Explained: ${decimal(share)} of the whole difference.`
    : `Explained: ${decimal(share)} of what the logit loses without all features here.`;
}

function signed(value: number): string {
  return `${value < 0 ? "−" : "+"}${decimal(Math.abs(value))}`;
}
