// The registered SAEs, with a field that finds some of them by their words.
import { useRef } from "react";
import type { Sae } from "../../api/saes";
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
}: {
  records: readonly Sae[];
  words: string;
  onWords: (words: string) => void;
  /** The ids of SAEs that are about to be attached. */
  chosen: readonly string[];
  onChoose: (sae: Sae) => void;
}) {
  const field = useRef<HTMLInputElement>(null);
  useShortcut("find", () => field.current?.focus());
  const parts = words.toLowerCase().split(/\s+/).filter((part) => part !== "");
  const shown = [...records]
    .filter((sae) => parts.every((part) => textOf(sae).includes(part)))
    .sort((a, b) => placeOf(a).localeCompare(placeOf(b)) || (a.trained_layer ?? -1) - (b.trained_layer ?? -1));
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
          <SaeRow key={sae.id} sae={sae} isChosen={chosen.includes(sae.id)} onChoose={() => onChoose(sae)} />
        ))}
      </ul>
    </div>
  );
}

function placeOf(sae: Sae): string {
  return sae.repository_id ?? sae.local_path ?? "";
}

function textOf(sae: Sae): string {
  const parts = [sae.name, placeOf(sae), sae.file_path, sae.site, sae.format, sae.width, sae.trained_on, `layer ${sae.trained_layer}`];
  return parts.join(" ").toLowerCase();
}
