// What is monitored, at which cost, and the switch.
import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { configure, configuring, enable, type Monitoring } from "../../api/monitoring";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { count } from "../../rules/bytes";
import { bounded, named, TOP_K } from "../../rules/configuration";

const WHICH = [
  { value: "all", label: "All features" },
  { value: "some", label: "These features" },
] as const;
const COST = {
  all:
    "All features are computed for each written token. With an SAE of 16,384 features a step took about 6 % longer " +
    "where that was measured.",
  some: "Only these features are computed for each written token. With 20 features no cost could be measured.",
};
const HISTORY = { least: 1, most: 1000 };

interface Props {
  state: Monitoring;
  onDone: () => Promise<unknown>;
}

export function Configure({ state, onDone }: Props) {
  const [isOpen, setOpen] = useState(!state.enabled);
  const off = useMutation({ mutationFn: () => enable(false), onSuccess: onDone });
  return (
    <Panel
      title="Monitoring"
      actions={
        state.enabled && (
          <>
            <button type="button" className="small" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              Change
            </button>
            <button type="button" className="small" disabled={off.isPending} onClick={() => off.mutate()}>
              Switch off
            </button>
          </>
        )
      }
    >
      <p>
        {state.enabled ? <b>On</b> : <b>Off</b>}
        {state.enabled && `: ${watched(state)} of the SAE at layer ${state.layer}, the ${state.top_k} largest shown`}
        {`. ${count(state.history_count)} of at most ${count(state.history_size)} records are kept.`}
      </p>
      {off.error !== null && <ErrorNotice error={off.error} />}
      {isOpen && <ConfigureForm state={state} onDone={onDone} />}
    </Panel>
  );
}

export function ConfigureForm({ state, onDone }: Props) {
  const [which, setWhich] = useState<"all" | "some">(state.monitored_features.length === 0 ? "all" : "some");
  const [list, setList] = useState(state.monitored_features.join(", "));
  const [top, setTop] = useState(String(state.top_k));
  const [size, setSize] = useState(String(state.history_size));
  const features = which === "all" ? [] : named(list);
  const top_k = bounded(top, TOP_K);
  const history_size = bounded(size, HISTORY);
  const isWhole = features !== null && top_k !== null && history_size !== null;
  const body = isWhole
    ? { enabled: true, features: features.length === 0 ? null : features, top_k, history_size }
    : null;
  const save = useMutation({ mutationFn: configure, onSuccess: onDone });
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        if (body !== null) save.mutate(body);
      }}
    >
      <Segmented label="What is monitored" options={WHICH} value={which} onChange={setWhich} />
      {which === "some" && (
        <label className="field">
          Indices, separated by commas
          <input
            value={list}
            aria-invalid={features === null || undefined}
            onChange={(event) => setList(event.target.value)}
          />
        </label>
      )}
      <div className="row">
        <NumberField label="Largest shown (top_k)" value={top} isWrong={top_k === null} onChange={setTop} />
        <NumberField label="Records kept" value={size} isWrong={history_size === null} onChange={setSize} />
      </div>
      <p className="quiet">
        {COST[which]} Records have features and numbers, no text. They stay in the memory of the service.
      </p>
      <div className="row">
        <button type="submit" className="primary" disabled={body === null || save.isPending}>
          {state.enabled ? "Change it" : "Switch monitoring on"}
        </button>
      </div>
      {save.error !== null && <ErrorNotice error={save.error} />}
      {body !== null && <CopyCode sent={configuring(body)} />}
    </form>
  );
}

function NumberField({
  label,
  value,
  isWrong,
  onChange,
}: {
  label: string;
  value: string;
  isWrong: boolean;
  onChange: (value: string) => void;
}) {
  return (
    <label className="field count-field">
      {label}
      <input
        type="number"
        min={1}
        max={1000}
        value={value}
        aria-invalid={isWrong || undefined}
        onChange={(event) => onChange(event.target.value)}
      />
    </label>
  );
}

function watched({ monitored_features }: Monitoring): string {
  const size = monitored_features.length;
  if (size === 0) return "all features";
  return size === 1 ? `feature ${monitored_features[0]}` : `${count(size)} features`;
}
