// The request of this page, to be sent by other programs.
import { described } from "../../api/client";
import { CopyCode } from "../../parts/CopyCode";
import type { Steer } from "./useSteer";

export function Request({ steer: { state, bodyOf, canRun } }: { steer: Steer }) {
  if (!canRun) return null;
  return (
    <CopyCode
      title="This comparison as curl or Python"
      sent={described("post", "/api/compare", { body: bodyOf(state) })}
    />
  );
}
