// How far the download or the load of a model is. The record has it too, so that it survives a reload of the page.
import { useProgress } from "../../api/live";
import type { Model } from "../../api/models";
import { ProgressRow } from "../../parts/ProgressRow";

export function ModelProgress({ model }: { model: Model }) {
  const download = useProgress("models", "download", model.id);
  const load = useProgress("models", "load", model.id);
  if (model.status === "downloading") {
    const kept = model.download;
    return (
      <ProgressRow
        name="Download"
        progress={measured(download?.["progress"]) ?? model.download_progress}
        done={measured(download?.["downloadedBytes"]) ?? kept?.downloaded_bytes ?? null}
        total={measured(download?.["totalBytes"]) ?? kept?.total_bytes ?? null}
        rate={download === undefined ? (kept?.speed_bps ?? null) : measured(download["speedBps"])}
      />
    );
  }
  if (model.status !== "loading") return null;
  const stage = load?.["stage"];
  return (
    <ProgressRow
      name="Load"
      progress={measured(load?.["progress"])}
      {...(typeof stage === "string" ? { says: stage.replaceAll("_", " ") } : {})}
    />
  );
}

function measured(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}
