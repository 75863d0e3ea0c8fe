// Files that are dropped anywhere on the page or chosen, and what became of each, beside its name.
import { useEffect, useRef, useState } from "react";
import type { Imported } from "../rules/imported";
import { ErrorNotice } from "./ErrorNotice";

interface Outcome {
  key: number;
  file: string;
  /** Null while the file is being sent. */
  documents: readonly Imported[] | null;
  error?: unknown;
}

let last = 0;

export function DropFiles({
  what,
  send,
  onOpen,
}: {
  /** What a file has: `a cluster`. */
  what: string;
  send: (text: string) => Promise<readonly Imported[]>;
  /** Opens what was imported. */
  onOpen: (id: string) => void;
}) {
  const [outcomes, setOutcomes] = useState<readonly Outcome[]>([]);
  const take = async (files: FileList | null | undefined) => {
    for (const file of files ?? []) {
      last += 1;
      const key = last;
      const tell = (outcome: Omit<Outcome, "key" | "file">) =>
        setOutcomes((before) => before.map((one) => (one.key === key ? { key, file: file.name, ...outcome } : one)));
      setOutcomes((before) => [{ key, file: file.name, documents: null }, ...before]);
      try {
        const documents = await send(await file.text());
        tell({ documents });
        const id = documents.findLast((one) => one.id !== null)?.id;
        if (typeof id === "string") onOpen(id);
      } catch (error) {
        tell({ documents: null, error });
      }
    }
  };
  const isOver = useDroppedFiles((files) => void take(files));
  return (
    <div className="flow">
      <label className="drop" data-over={isOver || undefined}>
        <span>
          <span className="strong">Import {what}</span>
          <br />
          Drop files here, or choose them.
        </span>
        <input
          type="file"
          multiple
          accept=".json,application/json"
          aria-label={`Import ${what} from files`}
          onChange={(event) => {
            const { files } = event.target;
            void take(files).finally(() => {
              // the same file can be chosen again
              event.target.value = "";
            });
          }}
        />
      </label>
      <ul className="flow" aria-live="polite" aria-label="Imported files">
        {outcomes.map((outcome) => (
          <li key={outcome.key} className="imported">
            <OneFile
              outcome={outcome}
              onOpen={onOpen}
              onClose={() => setOutcomes((before) => before.filter((one) => one.key !== outcome.key))}
            />
          </li>
        ))}
      </ul>
    </div>
  );
}

function OneFile({ outcome, onOpen, onClose }: { outcome: Outcome; onOpen: (id: string) => void; onClose: () => void }) {
  const { file, documents, error } = outcome;
  return (
    <>
      <div className="row spread">
        <b className="file-name">{file}</b>
        {documents === null && error === undefined ? (
          <span className="loading">Importing</span>
        ) : (
          <button type="button" className="small" aria-label={`Forget ${file}`} onClick={onClose}>
            ✕
          </button>
        )}
      </div>
      {error !== undefined && <ErrorNotice error={error} />}
      {documents?.map((one, place) => (
        <div key={one.id ?? place}>
          {one.id === null ? (
            <p>
              <span className="status bad">
                <span aria-hidden="true">■</span> refused
              </span>{" "}
              {one.name}: {one.error}
            </p>
          ) : (
            <p>
              <span className="status good">
                <span aria-hidden="true">●</span> imported
              </span>{" "}
              <button type="button" className="plain-link" onClick={() => onOpen(one.id ?? "")}>
                {one.name}
              </button>
            </p>
          )}
          {one.warnings.map((warning) => (
            <p key={warning} className="quiet">
              {warning}
            </p>
          ))}
        </div>
      ))}
    </>
  );
}

/** Takes files that are dropped on the page, so that the browser does not leave it for them. */
function useDroppedFiles(take: (files: FileList) => void): boolean {
  const [isOver, setOver] = useState(false);
  const latest = useRef(take);
  useEffect(() => {
    latest.current = take;
  });
  useEffect(() => {
    const over = (event: DragEvent) => {
      if (event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => {
      if (event.relatedTarget === null) setOver(false);
    };
    const drop = (event: DragEvent) => {
      if (event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      setOver(false);
      latest.current(event.dataTransfer.files);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("dragleave", leave);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("dragleave", leave);
      window.removeEventListener("drop", drop);
    };
  }, []);
  return isOver;
}
