// Marks texts that were written with other settings than those that the page shows.
import { otherSettings, type Asked, type Comparison } from "../rules/comparison";

export function OtherSettings({ comparison, now }: { comparison: Comparison | undefined; now: Asked }) {
  // the texts that are about to be replaced are drawn pale
  if (comparison === undefined || comparison.phase === "waiting" || comparison.sides.length === 0) return null;
  const other = otherSettings(comparison.asked, now);
  if (other.length === 0) return null;
  return <strong className="other-settings">Written with other settings: {other.join(", ")}.</strong>;
}
