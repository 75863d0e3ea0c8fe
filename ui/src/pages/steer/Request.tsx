// The request of this page, to be sent by other programs.
import { CopyCode } from "../../parts/CopyCode";
import type { Sent } from "../../rules/snippet";
import type { Steer } from "./useSteer";

export function Request({ steer: { state, place, sentOf, canRun } }: { steer: Steer }) {
  if (!canRun) return null;
  const sent = sentOf(state);
  const steered = "url" in sent ? sent : sent.at(-1)?.sent;
  if (steered === undefined) return null;
  const what = steered !== sent ? "The steered request" : place === null ? "This request" : "This comparison";
  return <CopyCode title={`${what} as curl or Python`} sent={unstreamed(steered)} />;
}

/** The same request, answered as a whole. */
function unstreamed(sent: Sent): Sent {
  const { stream: _, stream_options: __, ...body } = sent.body as Record<string, unknown>;
  return { ...sent, body };
}
