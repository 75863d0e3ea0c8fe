// The scale of coloured tokens: what the strongest colour and the thickest underline mean.
import { decimal } from "../rules/bytes";

export function ScaleKey({ most, unit = "" }: { most: number; unit?: string }) {
  const decimals = most >= 100 ? 0 : most >= 10 ? 1 : 2;
  return (
    <span className="scale-key">
      <span>0</span>
      <span className="scale-ramp" aria-hidden="true" />
      <span>
        {decimal(most, decimals)}
        {unit}
      </span>
    </span>
  );
}
