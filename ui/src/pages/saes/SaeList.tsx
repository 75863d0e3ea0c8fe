// The registered SAEs, with a field that finds some of them by their words.
import { useRef, type ReactNode } from "react";
import type { Sae } from "../../api/saes";
import { naturally } from "../../rules/naturally";
import { useShortcut } from "../../shortcuts";
import { SaeRow } from "./SaeRow";

/** The number of SAEs from which on the field is shown. */
const MANY = 6;

export function SaeList({
  records,
  words,
  onWords,
  chosen,
  onChoose,
  panelAt,
  panel,
}: {
  records: readonly Sae[];
  words: string;
  onWords: (words: string) => void;
  /** The ids of SAEs that are about to be attached. */
  chosen: readonly string[];
  onChoose: (sae: Sae) => void;
  /** The id of the SAE under which the panel stands. */
  panelAt: string | undefined;
  panel: ReactNode;
}) {
  const field = useRef<HTMLInputElement>(null);
  useShortcut("find", () => field.current?.focus());
  const shown = [...records]
    .filter((sae) => hasWords(sae, words))
    .sort(
      (a, b) =>
        naturally(placeOf(a), placeOf(b)) ||
        (a.trained_layer ?? -1) - (b.trained_layer ?? -1) ||
        naturally(a.file_path ?? a.name, b.file_path ?? b.name) ||
        naturally(a.name, b.name),
    );
  return (
    <div className="flow">
      {(records.length >= MANY || words !== "") && (
        <label className="field">
          Find
          <input ref={field} type="search" value={words} placeholder="words of the name, the repository, the site" onChange={(event) => onWords(event.target.value)} />
        </label>
      )}
      {shown.length === 0 && <p className="empty">No registered SAE has all of these words.</p>}
      <ul className="records">
        {shown.map((sae) => (
          <SaeRow key={sae.id} sae={sae} isChosen={chosen.includes(sae.id)} onChoose={() => onChoose(sae)}>
            {sae.id === panelAt && panel}
          </SaeRow>
        ))}
      </ul>
    </div>
  );
}

/** Whether an SAE has all of the words that are searched. */
export function hasWords(sae: Sae, words: string): boolean {
  const parts = words.toLowerCase().split(/\s+/).filter((part) => part !== "");
  return parts.every((part) => textOf(sae).includes(part));
}

function placeOf(sae: Sae): string {
  return sae.repository_id ?? sae.local_path ?? "";
}

function textOf(sae: Sae): string {
  const parts = [sae.name, placeOf(sae), sae.file_path, sae.site, sae.format, sae.width, sae.trained_on, `layer ${sae.trained_layer}`];
  return parts.join(" ").toLowerCase();
}
