// How the tokens are chosen. Both sides have the same sampling and the same seed.
import { NumberField } from "../../parts/NumberField";
import { SEED_MAXIMUM, type SteerState } from "../../rules/steer";

export function Sampling({
  state,
  takesSeed,
  onChange,
}: {
  state: SteerState;
  /** Whether the model takes seeds. */
  takesSeed: boolean;
  onChange: (changed: Partial<SteerState>) => void;
}) {
  const isGreedy = state.t === 0;
  const another = () => onChange({ seed: Math.floor(Math.random() * 10_000), ...(isGreedy ? { t: 0.8 } : {}) });
  return (
    <div className="sampling" role="group" aria-label="Sampling">
      <NumberField label="Tokens" value={state.max} least={1} most={100_000} onCommit={(max) => onChange({ max })} />
      <NumberField
        label="Temperature"
        title="From 0 to 2. 0 always takes the most probable token"
        value={state.t}
        least={0}
        most={2}
        step={0.1}
        onCommit={(t) => onChange({ t })}
      />
      <NumberField label="Top p" value={state.p} least={0} most={1} step={0.05} onCommit={(p) => onChange({ p })} />
      {takesSeed && (
        <>
          <NumberField
            label="Seed"
            title={isGreedy ? "At temperature 0 every seed gives the same text" : `From 0 to ${SEED_MAXIMUM}`}
            value={state.seed}
            least={0}
            most={SEED_MAXIMUM}
            onCommit={(seed) => onChange({ seed })}
          />
          <button
            type="button"
            className="small"
            onClick={another}
            title={isGreedy ? "Another seed, at temperature 0.8" : "Another seed"}
          >
            Another seed
          </button>
        </>
      )}
    </div>
  );
}
