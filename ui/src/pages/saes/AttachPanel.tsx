// What is about to be attached: each SAE with its layer and whether it fits there, and how they are attached together.
import { useMutation, useQueries, useQueryClient } from "@tanstack/react-query";
import { attach, compatibility, describedAttach, type Attachments, type Attaching, type Dtype, type Overrides, type Sae } from "../../api/saes";
import type { Model } from "../../api/models";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { abilitiesOf } from "../../rules/abilities";
import { changedMember, type Member } from "../../rules/members";
import { MemberRow } from "./MemberRow";
import { OverrideFields } from "./OverrideFields";

const HOW = [
  { value: "beside", label: "Beside what is attached" },
  { value: "instead", label: "In its place" },
] as const;
const DTYPES = ["stored", "model", "float32", "bfloat16", "float16"] as const satisfies readonly Dtype[];

/** What a person chose beside the SAEs; it stays while SAEs are added. */
export interface AttachOptions {
  isInstead: boolean;
  dtype: Dtype | "";
  overrides: Overrides;
}
export const AS_THEY_ARE: AttachOptions = { isInstead: true, dtype: "", overrides: {} };

export function AttachPanel({
  members,
  records,
  loaded,
  attached,
  options,
  onOptions,
  onChange,
}: {
  members: readonly Member[];
  records: readonly Sae[];
  loaded: Model | undefined;
  attached: Attachments | undefined;
  options: AttachOptions;
  onOptions: (options: AttachOptions) => void;
  onChange: (members: Member[]) => void;
}) {
  const client = useQueryClient();
  const { isInstead, dtype, overrides } = options;
  const set = (changed: Partial<AttachOptions>) => onOptions({ ...options, ...changed });
  const isReplacing = members.length === 1 && isInstead;
  const wanted: Attaching = { members, isReplacing, dtype: dtype === "" ? null : dtype, overrides };
  const work = useMutation({
    mutationFn: () => attach(wanted),
    onSuccess: () => {
      notify(members.length === 1 ? "The SAE is attached." : `${members.length} SAEs are attached.`);
      onChange([]);
    },
    onSettled: () =>
      Promise.all(
        ["attachments", "saes", "steering", "models", "health"].map((noun) => client.invalidateQueries({ queryKey: [noun] })),
      ),
  });
  const verdicts = useQueries({
    queries: members.map(({ sae_id, layer }) => compatibility(sae_id, layer, loaded?.id ?? null)),
  });
  const isRefused = verdicts.some(({ data, error }) => error !== null || data?.compatible === false);
  const isOverridden = isReplacing && Object.keys(overrides).length > 0;
  const why = reason(loaded, isRefused && !isOverridden);
  const there = attached?.count ?? 0;
  return (
    <Panel
      title="To attach"
      about="Compatibility is checked before any weights are read. Several SAEs are attached all together, or none of them."
      actions={
        <button type="button" className="small" onClick={() => onChange([])}>
          Clear
        </button>
      }
    >
      <ul className="records">
        {members.map((member, place) => (
          <MemberRow
            key={`${member.sae_id} ${place}`}
            member={member}
            record={records.find(({ id }) => id === member.sae_id)}
            loaded={loaded}
            onChange={(changed) => onChange(changedMember(members, place, changed))}
            verdict={verdicts[place]}
          />
        ))}
      </ul>
      <div className="fields">
        {members.length === 1 && there > 0 && (
          <div className="field">
            <span>{there === 1 ? "1 SAE is attached" : `${there} SAEs are attached`}</span>
            <Segmented
              label="How to attach"
              options={HOW}
              value={isReplacing ? "instead" : "beside"}
              onChange={(value) => set({ isInstead: value === "instead" })}
            />
          </div>
        )}
        <label className="field">
          Precision in memory
          <select value={dtype} onChange={(event) => set({ dtype: event.target.value as Dtype | "" })}>
            <option value="">{isReplacing ? "as in its file" : "float16, the choice for sets"}</option>
            {DTYPES.map((type) => (
              <option key={type} value={type}>
                {type === "stored" ? "stored: as in the file" : type === "model" ? "model: as the model" : type}
              </option>
            ))}
          </select>
        </label>
      </div>
      <p className="quiet">
        {isReplacing
          ? "One SAE alone is held in the precision of its file, several of a set as float16."
          : "A set is held as float16, unless the operator chose another type (MULTISAE_ATTACH_DTYPE). One SAE that is attached in the place of all others is held in the precision of its file."}
      </p>
      {isReplacing ? (
        <OverrideFields value={overrides} needs={records.find(({ id }) => id === members[0]?.sae_id)?.needs ?? []} onChange={(changed) => set({ overrides: changed })} />
      ) : (
        <p className="quiet">Values that replace what the files say can be given when one SAE is attached in the place of the others.</p>
      )}
      {isReplacing && there > 0 && (
        <p className="notice notice-warn">
          {there === 1 ? "The attached SAE is" : `The ${there} attached SAEs are`} detached, and the steering values are cleared.
          Running requests end with what is attached now.
        </p>
      )}
      <div className="row">
        <button type="button" className="primary" disabled={why !== null || work.isPending} onClick={() => work.mutate()}>
          {work.isPending ? "Attaching" : members.length === 1 ? "Attach" : `Attach ${members.length} SAEs`}
        </button>
        {why !== null && <span className="quiet says">{why}</span>}
      </div>
      {work.error !== null && <ErrorNotice error={work.error} />}
      <CopyCode sent={describedAttach(wanted)} />
    </Panel>
  );
}

function reason(loaded: Model | undefined, isRefused: boolean): string | null {
  if (loaded === undefined) return "No model is loaded. Load a model first.";
  const { why } = abilitiesOf(loaded);
  if (why !== null) return `${why} Load a checkpoint.`;
  return isRefused ? "An SAE does not fit the model at its layer." : null;
}
