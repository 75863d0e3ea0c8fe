// The names of the features and vectors of edits: labels of features, names of stored vectors.
import { useQueries, useQuery } from "@tanstack/react-query";
import { feature } from "../../../api/steer";
import { vectors } from "../../../api/vectors";
import type { Edit, FeatureName, Names } from "../../../rules/edits";
import { plainName } from "../../../rules/editWords";

export function useNames(edits: readonly Edit[]): Names {
  const all = edits.flatMap((edit) => [edit.feature, edit.when?.feature]);
  const named = all.filter((one): one is FeatureName & { sae_id: string } => one?.sae_id !== undefined);
  const keys = [...new Set(named.map(({ sae_id, index }) => JSON.stringify([sae_id, index])))];
  const known = useQueries({
    queries: keys.map((key) => feature(...(JSON.parse(key) as [string, number]))),
    combine: (answers) => answers.map(({ data }) => data?.label ?? null),
  });
  const hasVectors = edits.some(({ vector, when }) => vector !== undefined || when?.vector !== undefined);
  const stored = useQuery({ ...vectors, enabled: hasVectors }).data?.vectors;
  return {
    feature: (name) => known[keys.indexOf(JSON.stringify([name.sae_id, name.index]))] ?? plainName(name),
    vector: (id) => stored?.find((one) => one.id === id)?.name ?? id,
  };
}
