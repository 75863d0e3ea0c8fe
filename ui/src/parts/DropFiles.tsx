// Files that are dropped anywhere on the page or chosen, and what became of each, beside its name.
import { useState } from "react";
import type { Imported } from "../rules/imported";
import { ErrorNotice } from "./ErrorNotice";
import { FileDrop } from "./FileDrop";

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
  const take = async (files: FileList) => {
    for (const file of files) {
      last += 1;
      const key = last;
      setOutcomes((before) => [{ key, file, documents: null }, ...before]);
      await one(key, file);
    }
  };
  return (
    <div className="flow">
      <FileDrop
        title={`Import ${what}`}
        says="Drop files here, or choose them."
        label={`Import ${what} from files`}
        accept={accept}
        isMultiple
        onFiles={take}
      />
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
