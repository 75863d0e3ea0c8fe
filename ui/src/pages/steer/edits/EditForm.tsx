// One edit: of a feature or a vector, what is done to it, where, and when.
import { useState } from "react";
import { Segmented } from "../../../parts/Segmented";
import { editKind, OPS, type Op, type Sort } from "../../../rules/editKinds";
import { sortOf, type Edit, type PageEdit, type Unit } from "../../../rules/edits";
import { formula, sentence } from "../../../rules/editWords";
import type { Steer } from "../useSteer";
import { FeatureField } from "./FeatureField";
import { JsonField } from "./JsonField";
import { LayersField } from "./LayersField";
import { PositionsField } from "./PositionsField";
import { VectorField } from "./VectorField";
import { WhenField } from "./WhenField";
import { useNames } from "./useNames";

const KINDS = [
  { value: "feature", label: "A feature", title: "One direction of an attached SAE" },
  { value: "vector", label: "A vector", title: "A stored direction" },
] as const;
const UNITS: Record<"feature" | "vector", readonly { unit: Unit; words: string }[]> = {
  feature: [
    { unit: "activation", words: "as an activation" },
    { unit: "max", words: "times the largest activation that is known" },
  ],
  vector: [
    { unit: "raw", words: "times the vector as it is" },
    { unit: "unit", words: "as a length" },
    { unit: "residual", words: "times the length of the value" },
  ],
};
const FIRST: Edit = { op: "set", feature: { index: -1 }, value: 0 };

export function EditForm({
  steer,
  edit,
  onSave,
  onClose,
}: {
  steer: Steer;
  /** The edit that is changed; undefined for a new one. */
  edit: PageEdit | undefined;
  onSave: (edit: PageEdit) => void;
  onClose: () => void;
}) {
  const { places, state } = steer;
  const [draft, setDraft] = useState<PageEdit>(
    () => edit ?? (places.length === 0 ? { op: "add", vector: "", value: 1 } : FIRST),
  );
  const [isPartWrong, setPartWrong] = useState<Readonly<Record<string, boolean>>>({});
  const names = useNames([draft]);
  const { op, feature, vector, value, unit, source } = draft;
  const kind = sortOf(draft);
  const takesValue = editKind(op, kind)?.takesValue ?? false;
  const takesUnit = kind === "feature" ? takesValue && op !== "scale" && op !== "replace" : op === "add";
  // a vector is taken out whole, and a value replaced whole, where nothing else is said
  const shown = value ?? (op === "ablate" || op === "replace" ? 1 : undefined);
  const change = (part: { [Name in keyof PageEdit]?: PageEdit[Name] | undefined }) => setDraft(cleaned({ ...draft, ...part }));
  const wrong = (part: string) => (isWrong: boolean) => setPartWrong((before) => ({ ...before, [part]: isWrong }));
  const isNamed = kind === "feature" ? (feature?.index ?? -1) >= 0 : vector !== "" && (op !== "swap" || Boolean(draft.to));
  // the form makes no source, it only changes one
  const ops = OPS.filter((one) => editKind(one, kind) !== null && (one !== "replace" || kind === "vector" || source !== undefined));
  const isWhole = isNamed && (!takesValue || Number.isFinite(shown)) && !Object.values(isPartWrong).includes(true);
  const what = formula(draft);
  return (
    <form
      className="flow edit-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (isWhole) onSave(draft);
      }}
    >
      {kind !== "site" && (
        <Segmented
          label="What is edited"
          options={KINDS}
          value={kind}
          onChange={(next) => setDraft(next === "feature" ? FIRST : { op: "add", vector: "", value: 1 })}
        />
      )}
      {feature !== undefined && (
        <FeatureField label="Feature" places={places} feature={feature} onChange={(next) => change({ feature: next })} />
      )}
      {kind === "vector" && (
        <VectorField label="Vector" vector={vector ?? ""} onChange={(next) => change({ vector: next, layers: undefined })} />
      )}
      <label className="field">
        What is done
        <select
          value={op}
          onChange={({ target }) =>
            change({ op: target.value as Op, value: isWholeAtFirst(target.value, kind) ? 1 : value, unit: undefined })
          }
        >
          {ops.map((one) => (
            <option key={one} value={one}>
              {editKind(one, kind)?.choice}
            </option>
          ))}
        </select>
      </label>
      {op === "swap" && <VectorField label="The other vector" vector={draft.to ?? ""} onChange={(to) => change({ to })} />}
      {(takesValue || takesUnit) && (
        <div className="field-row">
          <label className="field">
            Value
            <input
              type="number"
              step="any"
              required
              value={shown === undefined || Number.isNaN(shown) ? "" : shown}
              onChange={({ target }) => change({ value: target.value === "" ? NaN : Number(target.value) })}
            />
          </label>
          {takesUnit && kind !== "site" && (
            <label className="field">
              Counted
              <select
                value={unit ?? UNITS[kind][0]?.unit}
                onChange={({ target }) => change({ unit: target.value as Unit })}
              >
                {UNITS[kind].map((one) => (
                  <option key={one.unit} value={one.unit}>
                    {one.words}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
      )}
      {op === "replace" && source !== undefined && (
        <JsonField
          label="The other text, as the field source of a request has it"
          value={source}
          onChange={(next) => change({ source: next })}
          onWrong={wrong("source")}
        />
      )}
      {kind === "vector" && <LayersField vector={vector ?? ""} layers={draft.layers} onChange={(layers) => change({ layers })} />}
      <PositionsField
        positions={draft.positions}
        isChat={state.as === "chat"}
        onChange={(positions) => change({ positions })}
        onWrong={wrong("positions")}
      />
      <WhenField when={draft.when} places={places} onChange={(when) => change({ when })} onWrong={wrong("when")} />
      {isNamed && (
        <p className="edit-words" aria-live="polite">
          {sentence(draft, names)}.
        </p>
      )}
      <details>
        <summary>The formula</summary>
        <p>
          <code>{what.formula}</code>
        </p>
        <p className="quiet">{what.letters}.</p>
      </details>
      <p className="row end">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" className="primary" disabled={!isWhole}>
          {edit === undefined ? "Add the edit" : "Change the edit"}
        </button>
      </p>
    </form>
  );
}

/** Whether an edit that becomes this op does all of it, until another value is written. */
function isWholeAtFirst(op: string, kind: Sort): boolean {
  return op === "replace" || (op === "ablate" && kind === "vector");
}

/** An edit without the fields that its op does not take, and without those that are undefined. */
function cleaned(draft: { [Name in keyof PageEdit]?: PageEdit[Name] | undefined }): PageEdit {
  const { op, feature, value, to, unit, source } = draft;
  const takesNoValue = op === "swap" || (op === "ablate" && feature !== undefined);
  const fields = {
    ...draft,
    value: takesNoValue ? undefined : value,
    to: op === "swap" ? to : undefined,
    source: op === "replace" ? source : undefined,
    unit: unit === "activation" || unit === "raw" ? undefined : unit,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, field]) => field !== undefined)) as unknown as PageEdit;
}
