// What a side adds to the model, as the service says it.
import { useQueries } from "@tanstack/react-query";
import { feature } from "../../api/steer";
import { added, type Side } from "../../rules/comparison";
import { signed } from "../../rules/strength";

const MOST = 3;

export function Added({ side, kind }: { side: Side | undefined; kind: "plain" | "steered" }) {
  const values = side === undefined ? [] : added(side.steering);
  const shown = values.slice(0, MOST);
  const labels = useQueries({
    queries: shown.map(({ key, index }) => feature(key.slice(0, key.lastIndexOf("@")), index)),
    combine: (answers) => answers.map(({ data }) => data?.label ?? null),
  });
  if (kind === "plain") return <p className="quiet">nothing added</p>;
  if (side === undefined) return <p className="quiet">not written yet</p>;
  if (values.length === 0) return <p className="quiet">nothing added</p>;
  return (
    <p className="quiet added">
      {shown.map(({ key, index, value }, at) => (
        <span key={`${key}${index}`}>
          {labels[at] ?? `#${index}`} <b>{signed(value)}</b>
        </span>
      ))}
      {values.length > MOST && <span>and {values.length - MOST} more</span>}
    </p>
  );
}
