// The condition under which an edit acts.
import { useState } from "react";
import type { When } from "../../../rules/edits";
import type { Place } from "../../../rules/steer";
import { FeatureField } from "./FeatureField";
import { JsonField } from "./JsonField";
import { VectorField } from "./VectorField";

const OVER = {
  token: "at the token itself",
  prompt_max: "at its largest in the prompt",
  prompt_mean: "in the mean of the prompt",
  last_prompt: "at the last token of the prompt",
} as const;

export function WhenField({
  when,
  places,
  onChange,
  onWrong,
}: {
  when: When | undefined;
  places: readonly Place[];
  onChange: (when: When | undefined) => void;
  onWrong: (isWrong: boolean) => void;
}) {
  const [kind, setKind] = useState(() => kindOf(when));
  const choose = (next: string) => {
    setKind(next);
    onWrong(next === "feature" || next === "vector");
    if (next === "always") onChange(undefined);
    else if (next === "own") onChange(when ?? { any: [] });
    else onChange({ above: 0, ...(next === "feature" ? { feature: { index: -1 } } : { vector: "" }) });
  };
  const named = (part: Partial<When>) => {
    onWrong(false);
    onChange({ ...when, ...part });
  };
  return (
    <>
      <label className="field">
        When
        <select value={kind} onChange={(event) => choose(event.target.value)}>
          <option value="always">always</option>
          {(places.length > 0 || kind === "feature") && <option value="feature">by the activation of a feature</option>}
          <option value="vector">by the part along a vector</option>
          <option value="own">under a condition of my own, as JSON</option>
        </select>
      </label>
      {kind === "feature" && when?.feature !== undefined && (
        <FeatureField label="Feature of the condition" places={places} feature={when.feature} onChange={(feature) => named({ feature })} />
      )}
      {kind === "vector" && (
        <VectorField label="Vector of the condition" vector={when?.vector ?? ""} onChange={(vector) => named({ vector })} />
      )}
      {(kind === "feature" || kind === "vector") && when !== undefined && <Bound when={when} onChange={onChange} />}
      {kind === "own" && when !== undefined && (
        <JsonField label="Condition, as the field when of a request has it" value={when} onChange={onChange} onWrong={onWrong} />
      )}
    </>
  );
}

function Bound({ when, onChange }: { when: When; onChange: (when: When) => void }) {
  const { above, below, over = "token", hold = "token", ...read } = when;
  const put = (bound: { above: number } | { below: number }, rest: Pick<When, "over" | "hold">) => {
    const kept = { over: rest.over ?? over, hold: rest.hold ?? hold };
    onChange({
      ...read,
      ...bound,
      ...(kept.over === "token" ? {} : { over: kept.over }),
      ...(kept.hold === "token" || kept.over !== "token" ? {} : { hold: kept.hold }),
    });
  };
  const value = above ?? below ?? 0;
  const now = above === undefined ? { below: value } : { above: value };
  return (
    <>
      <div className="field-row">
        <label className="field">
          Is
          <select
            value={above === undefined ? "below" : "above"}
            onChange={({ target }) => put(target.value === "above" ? { above: value } : { below: value }, {})}
          >
            <option value="above">above</option>
            <option value="below">below</option>
          </select>
        </label>
        <label className="field">
          Bound
          <input
            type="number"
            step="any"
            required
            defaultValue={value}
            onChange={({ target }) => {
              const next = Number(target.value);
              put(above === undefined ? { below: next } : { above: next }, {});
            }}
          />
        </label>
        <label className="field">
          Compared
          <select value={over} onChange={({ target }) => put(now, { over: target.value as NonNullable<When["over"]> })}>
            {Object.entries(OVER).map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
          </select>
        </label>
      </div>
      {over === "token" && (
        <div className="field-row">
          <label className="field">
            The edit then acts
            <select
              value={typeof hold === "number" ? "some" : hold}
              onChange={({ target }) => put(now, { hold: target.value === "some" ? 4 : (target.value as "token" | "rest") })}
            >
              <option value="token">at this token</option>
              <option value="some">for some tokens from there</option>
              <option value="rest">to the end</option>
            </select>
          </label>
          {typeof hold === "number" && (
            <label className="field">
              Tokens
              <input
                type="number"
                required
                min={1}
                value={hold}
                onChange={({ target }) => put(now, { hold: Math.max(1, Number(target.value)) })}
              />
            </label>
          )}
        </div>
      )}
    </>
  );
}

function kindOf(when: When | undefined): string {
  if (when === undefined) return "always";
  if (when.feature !== undefined) return "feature";
  return when.vector !== undefined ? "vector" : "own";
}
