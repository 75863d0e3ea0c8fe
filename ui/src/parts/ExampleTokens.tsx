// The tokens around a place where a feature fires, each coloured by the activation of the feature.
import { decimal } from "../rules/bytes";

/** What is shown in the place of tokens that would not be seen. */
const SIGNS: Readonly<Record<string, string>> = { "\n": "⏎", "\t": "⇥" };

export function ExampleTokens({
  tokens,
  at,
  scale,
}: {
  tokens: readonly { text: string; value: number }[];
  /** The place of the token that the example is about. */
  at: number;
  /** The activation of the full colour. */
  scale: number;
}) {
  return (
    <p className="example-tokens">
      {tokens.map(({ text, value }, place) => {
        const shown = text.replace(/[\n\t]/g, (sign) => SIGNS[sign] ?? sign);
        if (value === 0) return <span key={place}>{shown}</span>;
        const style = { "--v": Math.min(1, Math.max(0, value / scale)) } as React.CSSProperties;
        return (
          <mark key={place} style={style} data-at={place === at || undefined} title={decimal(value)}>
            {shown}
          </mark>
        );
      })}
    </p>
  );
}
