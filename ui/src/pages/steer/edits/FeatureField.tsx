// A feature of an attached SAE, found by words of its label or by its number.
import { useDeferredValue, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { feature as asked, search } from "../../../api/steer";
import { Combo } from "../../../parts/Combo";
import { ErrorNotice } from "../../../parts/ErrorNotice";
import type { FeatureName } from "../../../rules/edits";
import { placeName } from "../../../rules/places";
import { keyOf, type Place } from "../../../rules/steer";

export function FeatureField({
  label,
  places,
  feature,
  onChange,
}: {
  label: string;
  places: readonly Place[];
  /** The index is -1 where none is chosen yet. */
  feature: FeatureName;
  onChange: (feature: FeatureName) => void;
}) {
  const [query, setQuery] = useState("");
  const [own, setOwn] = useState<string | null>(null);
  const words = useDeferredValue(query.trim());
  const place =
    places.find((one) => keyOf(one) === own) ?? places.find(({ sae_id }) => sae_id === feature.sae_id) ?? places[0];
  const found = useQuery({ ...search(place?.sae_id ?? "", words, null), enabled: place !== undefined && words !== "" });
  const isChosen = feature.index >= 0;
  const chosen = useQuery({
    ...asked(feature.sae_id ?? "", feature.index),
    enabled: isChosen && feature.sae_id !== undefined,
    retry: false,
  });
  if (place === undefined) return <p className="quiet">No SAE is attached, so there are no features. A vector needs none.</p>;
  const { sae_id, layer } = place;
  const number = /^#?(\d{1,9})$/.exec(words)?.[1];
  const options = [
    ...(number === undefined ? [] : [{ id: number, label: `Feature ${number}`, note: placeName(layer, Number(number)) }]),
    ...(found.data?.features ?? [])
      .filter(({ feature_idx }) => String(feature_idx) !== number)
      .map((one) => ({
        id: String(one.feature_idx),
        label: one.label ?? "no label",
        note: placeName(layer, one.feature_idx),
      })),
  ];
  return (
    <div className="flow">
      {places.length > 1 && (
        <label className="field">
          SAE of the {label.toLowerCase()}
          <select value={keyOf(place)} onChange={(event) => setOwn(event.target.value)}>
            {places.map((one) => (
              <option key={keyOf(one)} value={keyOf(one)}>
                layer {one.layer}, {one.sae_id}
              </option>
            ))}
          </select>
        </label>
      )}
      <div className="field">
        <span>
          {label}
          {isChosen && (
            <>
              : <b>{chosen.data?.label ?? "no label"}</b>{" "}
              <span className="place">{placeName(feature.layer ?? null, feature.index)}</span>
            </>
          )}
        </span>
        <Combo
          label={`Search: ${label}`}
          placeholder={isChosen ? "Another one: a word, or a number" : "A word of its label, or its number"}
          query={query}
          onQuery={setQuery}
          options={options}
          onChoose={(id) => {
            setQuery("");
            onChange({ index: Number(id), sae_id, layer });
          }}
          status={words !== "" && options.length === 0 ? (found.isFetching ? "Searching" : "No label has these words.") : null}
        />
      </div>
      {chosen.error !== null && <ErrorNotice error={chosen.error} />}
    </div>
  );
}
