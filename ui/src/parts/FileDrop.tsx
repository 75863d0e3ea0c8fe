// A place to drop files on, or to choose them. Files that are dropped anywhere on the page count.
import { useEffect, useRef, useState } from "react";

export function FileDrop({
  title,
  says,
  label,
  accept,
  isMultiple = false,
  onFiles,
}: {
  title: string;
  says: string;
  /** The name of the field. */
  label: string;
  /** The kinds of files, as the browser takes them. */
  accept: string;
  isMultiple?: boolean;
  onFiles: (files: FileList) => Promise<void>;
}) {
  const isOver = useDroppedFiles((files) => void onFiles(files));
  return (
    <label className="drop" data-over={isOver || undefined}>
      <span>
        <span className="strong">{title}</span>
        <br />
        {says}
      </span>
      <input
        type="file"
        multiple={isMultiple}
        accept={accept}
        aria-label={label}
        onChange={(event) => {
          const { files } = event.target;
          if (files === null) return;
          void onFiles(files).finally(() => {
            // the same file can be chosen again
            event.target.value = "";
          });
        }}
      />
    </label>
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
