// Short facts in a row: each with its name above it. A fact that is not known is a dash.
import type { ReactNode } from "react";
import { DASH } from "../rules/bytes";
import { Term } from "./Term";

export type Fact = readonly [name: string, value: ReactNode, title?: string | undefined];

export function Facts({ facts }: { facts: readonly Fact[] }) {
  return (
    <dl className="fact-row">
      {facts.map(([name, value, title]) => (
        <div key={name}>
          <dt>{title === undefined ? name : <Term means={title}>{name}</Term>}</dt>
          <dd>{value ?? DASH}</dd>
        </div>
      ))}
    </dl>
  );
}
