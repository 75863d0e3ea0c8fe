// The request of this page, to be sent by other programs.
import { CopyCode } from "../../parts/CopyCode";
import type { Sent } from "../../rules/snippet";
import type { Steer } from "./useSteer";

export function Request({ steer: { state, place, sentOf, canRun } }: { steer: Steer }) {
  if (!canRun) return null;
  return (
    <CopyCode
      title={`This ${place === null ? "request" : "comparison"} as curl or Python`}
      sent={unstreamed(sentOf(state))}
    />
  );
}

/** The same request, answered as a whole. */
function unstreamed(sent: Sent): Sent {
  const { stream: _, stream_options: __, ...body } = sent.body as Record<string, unknown>;
  return { ...sent, body };
}
