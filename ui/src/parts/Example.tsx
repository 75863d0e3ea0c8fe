// The text of a corpus in which a feature is strongest, beside the feature in a list.
import type { ReactNode } from "react";
import { ExampleTokens } from "./ExampleTokens";

export interface FeatureExample {
  value: number;
  at: number;
  tokens: readonly { text: string; value: number }[];
}

/** The example of a feature under its bar; nothing where the feature has none. */
export function exampleBeneath(example: FeatureExample | null | undefined): ReactNode {
  return example == null ? undefined : <Example example={example} />;
}

export function Example({ example }: { example: FeatureExample | null }) {
  if (example === null) return null;
  return <ExampleTokens tokens={example.tokens} at={example.at} scale={example.value} />;
}
