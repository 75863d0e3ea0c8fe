// Files that are dropped anywhere on the page or chosen, and what became of each, beside its name.
import { useEffect, useRef, useState } from "react";
import type { Imported } from "../rules/imported";
import { ErrorNotice } from "./ErrorNotice";

interface Outcome {
  key: number;
  file: File;
  /** Null while the file is being sent. */
  documents: readonly Imported[] | null;
  error?: unknown;
}

let last = 0;

export function DropFiles({
  what,
  send,
  onOpen,
  accept = ".json,application/json",
  canRetry = false,
}: {
  /** What a file has: `a cluster`. */
  what: string;
  send: (file: File) => Promise<readonly Imported[]>;
  /** Opens what was imported. */
  onOpen: (id: string) => void;
  /** The kinds of files, as the browser takes them. */
  accept?: string;
  /** Whether a refused file can be sent again, with other settings. */
  canRetry?: boolean;
}) {
  const [outcomes, setOutcomes] = useState<readonly Outcome[]>([]);
  const one = async (key: number, file: File) => {
    const tell = (outcome: Omit<Outcome, "key" | "file">) =>
      setOutcomes((before) => before.map((other) => (other.key === key ? { key, file, ...outcome } : other)));
    tell({ documents: null });
    try {
      const documents = await send(file);
      tell({ documents });
      const id = documents.findLast((document) => document.id !== null)?.id;
      if (typeof id === "string") onOpen(id);
    } catch (error) {
      tell({ documents: null, error });
    }
  };
  const take = async (files: FileList | null | undefined) => {
    for (const file of files ?? []) {
      last += 1;
      const key = last;
      setOutcomes((before) => [{ key, file, documents: null }, ...before]);
      await one(key, file);
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
          accept={accept}
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
              onClose={() => setOutcomes((before) => before.filter((other) => other.key !== outcome.key))}
              onRetry={canRetry ? () => void one(outcome.key, outcome.file) : undefined}
            />
          </li>
        ))}
      </ul>
    </div>
  );
}

function OneFile({
  outcome,
  onOpen,
  onClose,
  onRetry,
}: {
  outcome: Outcome;
  onOpen: (id: string) => void;
  onClose: () => void;
  onRetry: (() => void) | undefined;
}) {
  const { file, documents, error } = outcome;
  return (
    <>
      <div className="row spread">
        <b className="file-name">{file.name}</b>
        {documents === null && error === undefined ? (
          <span className="loading">Importing</span>
        ) : (
          <button type="button" className="small" aria-label={`Forget ${file.name}`} onClick={onClose}>
            ✕
          </button>
        )}
      </div>
      {error !== undefined && <ErrorNotice error={error} />}
      {error !== undefined && onRetry !== undefined && (
        <button type="button" className="small again" aria-label={`Import ${file.name} again`} onClick={onRetry}>
          Import again
        </button>
      )}
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
