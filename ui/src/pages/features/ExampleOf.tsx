// The strongest example of a feature in a list whose answer has none; it is asked for once.
import { useQuery } from "@tanstack/react-query";
import { feature } from "../../api/features";
import { largestOf } from "../../rules/sampled";
import { Example } from "../../parts/Example";

export function ExampleOf({ sae, index }: { sae: string; index: number }) {
  const asked = feature(sae, index);
  const { data } = useQuery({ ...asked, queryKey: asked.queryKey, refetchInterval: false, staleTime: Infinity });
  const over = largestOf(data?.corpora ?? []);
  return <Example example={over?.examples.find(({ is_strongest }) => is_strongest) ?? over?.examples[0] ?? null} />;
}
