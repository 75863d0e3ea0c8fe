// A span of a text between the text before it and the text after it.
import type { Parts } from "../rules/firing";

export function SpanText({ parts }: { parts: Parts | null }) {
  if (parts === null) return <p className="quiet">The text around it is not kept.</p>;
  const { before, span, after } = parts;
  return (
    <p className="span-text">
      {before}
      {span !== "" && <mark>{span}</mark>}
      {after}
    </p>
  );
}
