// By what features are ranked, where a corpus says how strongly and how often each fires.
import { Segmented } from "./Segmented";

export const RANKS = ["rarity", "share", "value"] as const;
type Rank = (typeof RANKS)[number];
const OPTIONS = [
  { value: "rarity", label: "rarity", title: "The share of its own largest value, times how rarely the feature fires" },
  { value: "share", label: "share", title: "The share of the largest value that the feature has in a corpus" },
  { value: "value", label: "value", title: "The largest value" },
] as const;

/** What comes first, in words, by the rank. */
export const FIRST: Record<Rank, string> = {
  rarity: "Features that are strong for them and seldom fire in a corpus come first. The number under the value ranks them.",
  share: "Features nearest to their largest value in a corpus come first. The number under the value ranks them.",
  value: "The largest come first.",
};

export function RankChoice({ value, onChange }: { value: Rank; onChange: (rank: Rank) => void }) {
  return <Segmented label="What ranks the features" options={OPTIONS} value={value} onChange={onChange} />;
}
