// The frame of the pages of documents: the list, the document that is open, and the import of files.
import type { ReactNode } from "react";
import type { UseQueryResult } from "@tanstack/react-query";
import { DropFiles } from "../../parts/DropFiles";
import { Panel, QueryPanel } from "../../parts/Panel";
import { activeFirst, Shelf } from "../../parts/Shelf";
import { useLink } from "../../parts/useLink";
import type { Imported } from "../../rules/imported";
import { text } from "../../rules/link";
import { useRefresh } from "./actions";
import "../../css/documents.css";

interface Document {
  id: string;
  name: string;
  is_active: boolean;
}
const LINK = { id: text() };

/** The document that the link names, else the active one, else the first; and how another one is opened. */
export function useOpened<T extends Document>(all: readonly T[]) {
  const [{ id }, change] = useLink(LINK);
  const opened = all.find((one) => one.id === id) ?? all.find((one) => one.is_active) ?? all[0];
  return { opened, open: (next: string) => change({ id: next }) };
}

export function Documents<T extends Document>({
  noun,
  lead,
  list,
  all,
  opened,
  open,
  facts,
  empty,
  about,
  detail,
  before,
  after,
  what,
  read,
  fields,
  accept,
}: ReturnType<typeof useOpened<T>> & {
  /** `Circuits`. */
  noun: string;
  lead: string;
  list: UseQueryResult<unknown>;
  all: readonly T[];
  /** The line under the name in the list. */
  facts: (one: T) => ReactNode;
  /** What an empty list means, and the next step. */
  empty: ReactNode;
  /** A sentence above the list. */
  about?: ReactNode;
  detail: (one: T) => ReactNode;
  /** The panels before and after the one of the import. */
  before?: ReactNode;
  after?: ReactNode;
  /** What a file has: `a circuit`. */
  what: string;
  read: (file: File) => Promise<Imported[]>;
  /** Fields that say how a file is read; a file that was refused can then be imported again. */
  fields?: ReactNode;
  /** The kinds of files, by default JSON. */
  accept?: string;
}) {
  const refresh = useRefresh();
  const send = async (file: File) => {
    const done = await read(file);
    await refresh();
    return done;
  };
  return (
    <div className="page">
      <header className="page-head">
        <h1>{noun}</h1>
        <p className="quiet">{lead}</p>
      </header>
      <div className="documents" data-empty={list.isSuccess && all.length === 0 ? true : undefined}>
        <QueryPanel
          className="documents-list"
          title={`All ${noun.toLowerCase()}`}
          query={list}
          isEmpty={() => all.length === 0}
          empty={empty}
          about={about}
        >
          {() => (
            <Shelf
              label={noun}
              selected={opened?.id}
              onSelect={open}
              items={activeFirst(all).map((one) => ({ id: one.id, name: one.name, isActive: one.is_active, facts: facts(one) }))}
            />
          )}
        </QueryPanel>
        <div className="documents-detail">{opened !== undefined && detail(opened)}</div>
        <div className="documents-more">
          {before}
          <Panel title="Import">
            <DropFiles
              what={what}
              send={send}
              onOpen={open}
              canRetry={fields !== undefined}
              {...(accept === undefined ? {} : { accept })}
            />
            {fields}
          </Panel>
          {after}
        </div>
      </div>
    </div>
  );
}

/** The facts of a set of values in the list. */
export function factsOf(size: number, layer: number | null, noLayer: string, intensity: string): string {
  const features = `${size} ${size === 1 ? "feature" : "features"}`;
  return [features, layer === null ? noLayer : `layer ${layer}`, `λ ${intensity}`].join(" · ");
}
