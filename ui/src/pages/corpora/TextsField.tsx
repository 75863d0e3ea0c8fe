// Texts of a corpus that are written into a box, or read from a file that is dropped on the page or chosen.
import { useState } from "react";
import { FileDrop } from "../../parts/FileDrop";
import { Segmented } from "../../parts/Segmented";
import { TextBox } from "../../parts/TextBox";
import { count } from "../../rules/bytes";
import type { Split } from "../../rules/contrast";
import { JSON_LINES, TEXT_FILES, textsOfFile, unreadable, type CorpusText } from "../../rules/corpus";

export interface Texts {
  written: string;
  split: Split;
  /** A file in the place of what is written. */
  file: { name: string; texts: CorpusText[] } | null;
}
const SPLIT = [
  { value: "lines", label: "A line is a text" },
  { value: "blocks", label: "An empty line ends a text" },
] as const;

export function TextsField({
  texts,
  field,
  size,
  onChange,
}: {
  texts: Texts;
  /** The field of JSON Lines that has the text. */
  field: string;
  /** How many texts there are now. */
  size: number;
  onChange: (texts: Texts) => void;
}) {
  const [fault, setFault] = useState<string | null>(null);
  const take = async (files: FileList) => {
    const file = files[0];
    if (file === undefined) return;
    const why = files.length > 1 ? "A corpus is read of one file." : unreadable(file.name, file.size);
    if (why !== null) return setFault(why);
    try {
      const content = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      onChange({ ...texts, file: { name: file.name, texts: textsOfFile(file.name, content, field.trim()) } });
      setFault(null);
    } catch (error) {
      const says = error instanceof TypeError ? "It is not UTF-8." : error instanceof Error ? error.message : String(error);
      setFault(`${file.name}: ${says}`);
    }
  };
  return (
    <div className="flow">
      {texts.file === null ? (
        <>
          <TextBox
            title="Texts"
            value={texts.written}
            size={size}
            rows={6}
            onChange={(written) => onChange({ ...texts, written })}
          />
          <Segmented
            label="What a text is"
            options={SPLIT}
            value={texts.split}
            onChange={(split) => onChange({ ...texts, split })}
          />
        </>
      ) : (
        <p className="row spread">
          <span>
            <b className="file-name">{texts.file.name}</b>, {count(size)} {size === 1 ? "text" : "texts"}
          </span>
          <button
            type="button"
            className="small"
            aria-label={`Forget ${texts.file.name}`}
            onClick={() => onChange({ ...texts, file: null })}
          >
            ✕
          </button>
        </p>
      )}
      <FileDrop
        title="Texts from a file"
        says="Drop one here, or choose it: JSON Lines, or texts between empty lines."
        label="Texts from a file"
        accept={[...JSON_LINES, ...TEXT_FILES].join(",")}
        onFiles={take}
      />
      {fault !== null && (
        <div className="notice notice-bad" role="alert">
          <p>{fault}</p>
        </div>
      )}
    </div>
  );
}
