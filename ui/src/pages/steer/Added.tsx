// What a side adds to the model, as the service says it.
import { useQueries } from "@tanstack/react-query";
import { feature } from "../../api/steer";
import { added, type Side } from "../../rules/comparison";
import { sentence } from "../../rules/editWords";
import { signed } from "../../rules/strength";
import { useNames } from "./edits/useNames";

const MOST = 3;

export function Added({ side, kind }: { side: Side | undefined; kind: "plain" | "steered" }) {
  const values = side === undefined ? [] : added(side.steering);
  const shown = values.slice(0, MOST);
  const labels = useQueries({
    queries: shown.map(({ key, index }) => feature(key.slice(0, key.lastIndexOf("@")), index)),
    combine: (answers) => answers.map(({ data }) => data?.label ?? null),
  });
  const names = useNames(side?.edits ?? []);
  if (kind === "plain") return <p className="quiet">nothing added</p>;
  if (side === undefined) return <p className="quiet">not written yet</p>;
  if (side.edits !== undefined) {
    const rest = side.edits.length - MOST;
    return (
      <p className="quiet added">
        {side.edits.slice(0, MOST).map((edit, at) => (
          <span key={at}>{sentence(edit, names)}</span>
        ))}
        {rest > 0 && <span>and {rest} more</span>}
      </p>
    );
  }
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
