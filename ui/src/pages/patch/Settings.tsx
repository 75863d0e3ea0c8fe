// Which places are patched, and in which direction.
import { NumberField } from "../../parts/NumberField";
import { Segmented } from "../../parts/Segmented";
import { haveHeads, layersIn, pairsIn, positionsIn, REPEATS_MAXIMUM, SITES, type Offered, type PatchState } from "../../rules/patch";

const DIRECTION = [
  { value: "denoise", label: "clean into corrupt", title: "What brings the clean answer back" },
  { value: "noise", label: "corrupt into clean", title: "What takes the clean answer away" },
] as const;
const AT = [
  { value: "each", label: "each token", title: "One patch for each token" },
  { value: "all", label: "all together", title: "One patch of all tokens" },
  { value: "some", label: "some", title: "Tokens by their number, each alone or in groups" },
] as const;

interface Props {
  state: PatchState;
  /** Those of the loaded model. */
  sites: readonly Offered[];
  onChange: (part: Partial<PatchState>) => void;
}

export function Settings({ state, sites: known, onChange }: Props) {
  const { sites, layers, at, positions, align } = state;
  const canSplit = haveHeads(sites, known);
  const names = known.map(({ site }) => site);
  // a link may name a site that the model does not have
  const offered = [...names, ...sites.filter((site) => !names.includes(site))];
  return (
    <div className="flow">
      <fieldset className="patch-sites">
        <legend>Sites</legend>
        {offered.map((site) => (
          <label key={site} className="row" title={SITES[site]}>
            <input
              type="checkbox"
              checked={sites.includes(site)}
              onChange={({ target }) =>
                onChange({ sites: offered.filter((one) => (one === site ? target.checked : sites.includes(one))) })
              }
            />
            <code>{site}</code>
          </label>
        ))}
      </fieldset>
      <div className="patch-settings">
        <div className="number-field">
          <span aria-hidden="true">Direction</span>
          <Segmented
            label="Direction"
            options={DIRECTION}
            value={state.direction}
            onChange={(direction) => onChange({ direction })}
          />
        </div>
        <label className="field">
          Layers
          <input
            value={layers}
            aria-invalid={layersIn(layers) === null || undefined}
            title="All, or layers such as 0-3, 8"
            onChange={(event) => onChange({ layers: event.target.value })}
          />
        </label>
        <div className="number-field">
          <span aria-hidden="true">Tokens</span>
          <Segmented label="Tokens" options={AT} value={at} onChange={(next) => onChange({ at: next })} />
        </div>
        {at === "some" && (
          <label className="field">
            Which tokens
            <input
              value={positions}
              placeholder="1, 4-6"
              aria-invalid={positionsIn(state) === null || undefined}
              title="Numbers from 0 on, and from the end -1; 1, 4-6 are four patches, 1; 4-6 are two"
              onChange={(event) => onChange({ positions: event.target.value })}
            />
          </label>
        )}
        <label className="field">
          Pairs of tokens
          <input
            value={align}
            placeholder="0-3:0-3, 5:6"
            aria-invalid={pairsIn(align) === null || undefined}
            title="For texts of different lengths: tokens of the clean text, and those of the corrupt text that belong to them"
            onChange={(event) => onChange({ align: event.target.value })}
          />
        </label>
        <NumberField
          label="Noise runs"
          title="How often the text is patched with its own values, which shows the noise; from 0 to 64"
          value={state.repeats}
          least={0}
          most={REPEATS_MAXIMUM}
          onCommit={(repeats) => onChange({ repeats })}
        />
      </div>
      <label className="row" title={canSplit ? undefined : "Not all of the chosen sites have heads"}>
        <input
          type="checkbox"
          checked={state.heads && canSplit}
          disabled={!canSplit}
          onChange={({ target }) => onChange({ heads: target.checked })}
        />
        <span>
          Each head alone{" "}
          {!canSplit && (
            <span className="quiet">
              (choose only sites with heads: {known.filter(({ hasHeads }) => hasHeads).map(({ site }) => site).join(", ") || "none"})
            </span>
          )}
        </span>
      </label>
    </div>
  );
}
