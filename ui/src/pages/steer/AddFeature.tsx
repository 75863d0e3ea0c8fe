// Adding a feature: by the words of its label, by its number, by values that are pasted, or by how near it is to another.
import { useDeferredValue, useState, type RefObject } from "react";
import { useQuery } from "@tanstack/react-query";
import { labelCount, search } from "../../api/steer";
import { Combo, type ComboOption } from "../../parts/Combo";
import { asApiError } from "../../rules/errors";
import { decimal } from "../../rules/bytes";
import type { Place } from "../../rules/steer";
import { pasted } from "../../rules/typed";
import { useAdd } from "./SteerWith";
import type { Steer } from "./useSteer";

const NUMBER = /^#?(\d{1,9})$/;

export function AddFeature({
  steer,
  place,
  near,
  onNear,
  input,
}: {
  steer: Steer;
  place: Place;
  /** The feature of this SAE whose neighbours are searched; null searches labels only. */
  near: { index: number; name: string } | null;
  onNear: (near: null) => void;
  input: RefObject<HTMLInputElement | null>;
}) {
  const add = useAdd(steer);
  const [query, setQuery] = useState("");
  const words = useDeferredValue(query.trim());
  const pairs = pasted(words);
  const number = NUMBER.exec(words)?.[1];
  const answer = useQuery(search(place.sae_id, pairs === null ? words : "", near?.index ?? null));
  const labels = useQuery(labelCount(place.sae_id)).data;
  const rows = (answer.data?.features ?? []).filter(({ feature_idx }) => feature_idx !== near?.index);
  const options: ComboOption[] = [
    ...(pairs === null
      ? []
      : [
          {
            id: "pairs",
            label: `Add ${pairs.length} ${pairs.length === 1 ? "feature" : "features"} with their values`,
          },
        ]),
    ...(number === undefined
      ? []
      : [{ id: `=${number}`, label: `Feature ${number}`, note: `${place.layer}:${number}` }]),
    ...rows.map(({ feature_idx, label, cosine }) => ({
      id: String(feature_idx),
      label: label ?? "no label",
      note:
        cosine == null ? `${place.layer}:${feature_idx}` : `${place.layer}:${feature_idx}, cosine ${decimal(cosine)}`,
    })),
  ];
  const choose = (id: string) => {
    setQuery("");
    onNear(null);
    void add(place, id === "pairs" ? (pairs ?? []) : [{ index: Number(id.replace("=", "")) }]);
  };
  return (
    <div className="add-feature">
      {near !== null && (
        <p className="row near-chip">
          Nearest to <b>{near.name}</b>
          <button type="button" className="small" aria-label="Search all features again" onClick={() => onNear(null)}>
            ✕
          </button>
        </p>
      )}
      <Combo
        label="Add a feature"
        placeholder={near === null ? "Add: a word, a number, or 90:52.5" : `Words in labels near ${near.name}`}
        query={query}
        onQuery={setQuery}
        options={options}
        onChoose={choose}
        input={input}
        status={status()}
      />
    </div>
  );

  function status() {
    if (answer.error !== null) return asApiError(answer.error).message;
    if (answer.isFetching && options.length === 0) return "Searching";
    if (words === "" && near === null)
      return labels === 0 ? "This SAE has no labels yet. Add features by number, or import labels." : null;
    if (options.length > 0) return null;
    return labels === 0 ? "This SAE has no labels. Add the feature by its number." : "No label has these words.";
  }
}
