// Why a model fits no card: what each card has free, and what the model would need there.
import { mebibytes } from "../rules/bytes";
import { isRecord } from "../rules/errors";

interface Share {
  device: string;
  name: string | null;
  free_mb: number;
  needed_mb: number;
  weights_mb: number;
  kv_mb: number;
  working_mb: number;
  staging_mb: number;
  context_mb: number;
}
const PARTS = [
  ["weights_mb", "weights"],
  ["kv_mb", "KV cache"],
  ["working_mb", "working memory"],
  ["staging_mb", "loading"],
  ["context_mb", "context of the card"],
] as const satisfies readonly (readonly [keyof Share, string])[];

/** The figures of the cards in the details of a refusal; null where the details have none. */
export function sharesOf(details: Record<string, unknown>): Share[] | null {
  const shares = details["per_card"];
  return Array.isArray(shares) && shares.length > 0 && shares.every(isShare) ? shares : null;
}

function isShare(value: unknown): value is Share {
  return isRecord(value) && ["free_mb", "needed_mb", "weights_mb"].every((name) => typeof value[name] === "number");
}

export function PerCard({ shares }: { shares: readonly Share[] }) {
  return (
    <div className="scroll-x" tabIndex={0} role="group" aria-label="Memory of each card">
      <table className="numbers-table">
        <thead>
          <tr>
            <th scope="col">card</th>
            <th scope="col">free</th>
            <th scope="col">needed</th>
            <th scope="col">lacks</th>
            {PARTS.map(([key, word]) => (
              <th key={key} scope="col">
                {word}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shares.map((share) => (
            <tr key={share.device}>
              <th scope="row">{share.name ? `${share.device}, ${share.name}` : share.device}</th>
              <td>{mebibytes(share.free_mb)}</td>
              <td>{mebibytes(share.needed_mb)}</td>
              <td className={share.needed_mb > share.free_mb ? "strong" : "quiet"}>
                {share.needed_mb > share.free_mb ? mebibytes(share.needed_mb - share.free_mb) : "nothing"}
              </td>
              {PARTS.map(([key]) => (
                <td key={key}>{mebibytes(share[key])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
