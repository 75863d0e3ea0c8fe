// Members of a document with labels: the document's own, else those of the SAE.
import { useQueries } from "@tanstack/react-query";
import { labels } from "../../api/documents";

interface Member {
  sae: string | null;
  index: number;
  label: string | null;
}

export function useLabelled<T extends Member>(members: readonly T[]): T[] {
  const bare = members.filter((member) => member.label === null && member.sae !== null);
  const saes = [...new Set(bare.map(({ sae }) => sae))];
  const known = useQueries({
    queries: saes.map((sae) => labels(sae, bare.filter((member) => member.sae === sae).map(({ index }) => index))),
    combine: (answers) => answers.map(({ data }) => data),
  });
  return members.map((member) => ({
    ...member,
    label: member.label ?? known[saes.indexOf(member.sae)]?.get(member.index) ?? null,
  }));
}
