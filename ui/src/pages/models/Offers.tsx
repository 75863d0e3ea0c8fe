// The ways to download a repository: its checkpoint at each precision, and its GGUF models, with their fit per card.
import type { NewHubModel, Offered, Precision } from "../../api/models";
import { Facts } from "../../parts/Facts";
import { bytes, mebibytes } from "../../rules/bytes";
import { mayBeSplit, verdict, type Place } from "../../rules/fit";

interface Offer {
  id: string;
  name: string;
  onDisk: string;
  /** MiB; null where it is not known. */
  memory: number | null;
  wanted: Partial<NewHubModel>;
}
/** Precisions at which a checkpoint can be loaded. Q2 is estimated, and refused at load. */
const LOADABLE = new Set(["FP16", "Q8", "Q4"]);

export function Offers({
  offered,
  places,
  isBusy,
  onDownload,
}: {
  offered: Offered;
  places: readonly Place[];
  isBusy: boolean;
  onDownload: (wanted: Partial<NewHubModel>) => void;
}) {
  const checkpoints = checkpointsOf(offered);
  const ggufs = ggufsOf(offered);
  if (checkpoints.length + ggufs.length === 0) return <div className="empty">The repository has no model that can be served.</div>;
  return (
    <>
      {checkpoints.length > 0 && (
        <section className="flow" aria-label="Checkpoint">
          <h3>Checkpoint</h3>
          <p className="quiet">The download is the same at each precision, which is applied at every load.</p>
          <OfferList offers={checkpoints} places={places} isBusy={isBusy} onDownload={onDownload} />
        </section>
      )}
      {ggufs.length > 0 && (
        <section className="flow" aria-label="GGUF models">
          <h3>GGUF models</h3>
          <p className="quiet">
            llama.cpp serves them. They have no layers to hook, so no SAE can be attached. Their memory is known once the header
            is read, after the download.
          </p>
          <OfferList offers={ggufs} places={places} isBusy={isBusy} onDownload={onDownload} />
        </section>
      )}
    </>
  );
}

function OfferList({
  offers,
  places,
  isBusy,
  onDownload,
}: {
  offers: readonly Offer[];
  places: readonly Place[];
  isBusy: boolean;
  onDownload: (wanted: Partial<NewHubModel>) => void;
}) {
  return (
    <ul className="offers">
      {offers.map((offer) => (
        <li key={offer.id}>
          <span className="strong">{offer.name}</span>
          <Facts
            facts={[
              ["download", offer.onDisk],
              ["in memory", offer.memory === null ? null : `≈ ${mebibytes(offer.memory)}`, "An estimate. The check before a load decides."],
            ]}
          />
          <Fits memory={offer.memory} places={places} />
          <button type="button" disabled={isBusy} aria-label={`Download ${offer.name}`} onClick={() => onDownload(offer.wanted)}>
            Download
          </button>
        </li>
      ))}
    </ul>
  );
}

function Fits({ memory, places }: { memory: number | null; places: readonly Place[] }) {
  if (memory === null) return <Facts facts={[["fit", null]]} />;
  return (
    <ul className="fits">
      {places.map((place) => {
        const says = verdict(memory, place);
        return (
          <li key={place.name} data-verdict={says}>
            <span className="quiet">{place.name}</span>
            {says !== "not known" && (
              <meter
                aria-label={`Need of the free memory of ${place.name}`}
                min={0}
                max={Math.max(place.free, 1)}
                value={Math.min(memory, place.free)}
              />
            )}
            <span className="verdict">{says === "not known" ? "–" : `${says}, ${mebibytes(place.free)} free`}</span>
          </li>
        );
      })}
      {mayBeSplit(memory, places) && <li className="quiet">It may fit over all cards together.</li>}
    </ul>
  );
}

function checkpointsOf(offered: Offered): Offer[] {
  return Object.entries(offered.estimated_sizes ?? {})
    .filter(([precision]) => LOADABLE.has(precision))
    .map(([precision, size]) => ({
      id: precision,
      name: precision,
      onDisk: mebibytes(size.disk_mb),
      memory: size.memory_mb > 0 ? size.memory_mb : null,
      wanted: { quantization: precision as Precision },
    }));
}

function ggufsOf(offered: Offered): Offer[] {
  return (offered.gguf_quants ?? []).map(({ label, files, total_size_bytes }) => ({
    id: label,
    name: files.length > 1 ? `${label}, ${files.length} files` : label,
    onDisk: total_size_bytes > 0 ? bytes(total_size_bytes) : "–",
    memory: null,
    wanted: { gguf_label: label },
  }));
}
