// A refusal: its message, its code, its details, and the time to come back.
import { useEffect, useState } from "react";
import { asApiError, isConnectionLost, PAGE_ERROR } from "../rules/errors";
import { span } from "../rules/age";
import { Copy } from "./Copy";
import { PerCard, sharesOf } from "./PerCard";

export function ErrorNotice({
  error,
  says,
  onRetry,
}: {
  error: unknown;
  /** What did not happen. */
  says?: string | undefined;
  onRetry?: (() => void) | undefined;
}) {
  const { message, code, details, retryAfter } = asApiError(error);
  const isLost = isConnectionLost(error);
  const shares = sharesOf(details);
  const rows = Object.entries(details).filter(([name]) => name !== "per_card" || shares === null);
  return (
    <div className="notice notice-bad" role="alert">
      <p>
        <strong>{isLost ? "Connection lost." : code === PAGE_ERROR ? "Failed." : "Refused."}</strong> {message} {says}
      </p>
      {!isLost && (
        <p className="row">
          <code>{code}</code>
          <Copy text={code} label={`Copy the code ${code}`} />
        </p>
      )}
      {shares !== null && <PerCard shares={shares} />}
      {rows.length > 0 && (
        <details>
          <summary>Details</summary>
          <table className="facts">
            <tbody>
              {rows.map(([name, value]) => (
                <tr key={name}>
                  <th scope="row">
                    <code>{name}</code>
                  </th>
                  <td>{typeof value === "object" ? <code>{JSON.stringify(value)}</code> : String(value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </details>
      )}
      {onRetry !== undefined && <Retry key={`${code}${message}`} after={retryAfter} onRetry={onRetry} />}
    </div>
  );
}

function Retry({ after, onRetry }: { after: number | null; onRetry: () => void }) {
  const [left, setLeft] = useState(after ?? 0);
  useEffect(() => {
    if (left <= 0) return undefined;
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left]);
  return (
    <p className="row">
      <button type="button" onClick={onRetry}>
        Try again
      </button>
      {left > 0 && <span className="quiet">The service asks to wait {span(left)}.</span>}
    </p>
  );
}
