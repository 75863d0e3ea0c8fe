// Corpora: texts that are read once, for what each feature of the attached SAEs does over them.
import { useQuery } from "@tanstack/react-query";
import { corpora } from "../api/corpora";
import { models } from "../api/queries";
import { QueryPanel } from "../parts/Panel";
import { useLink } from "../parts/useLink";
import { bytes, count } from "../rules/bytes";
import { text } from "../rules/link";
import { Captures } from "./corpora/Captures";
import { CorpusForm } from "./corpora/CorpusForm";
import { CorpusRow } from "./corpora/CorpusRow";
import { NoHooks } from "./NoHooks";
import "../css/documents.css";
import "../css/library.css";
import "../css/corpora.css";

const LINK = { job: text() };
const MIB = 2 ** 20;

export default function Corpora() {
  const [{ job }, change] = useLink(LINK);
  const list = useQuery(corpora);
  const loaded = useQuery(models).data;
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id) ?? null;
  return (
    <div className="page">
      <header className="page-head">
        <h1>Corpora</h1>
        <p className="quiet">
          Texts that are read once, for what each feature does over them: how often it fires, how strongly, and where.
        </p>
      </header>
      <NoHooks model={model} all={loaded?.models ?? []}>
        Features are read of no text here.
      </NoHooks>
      <div className="columns corpora">
        <QueryPanel
          title="All corpora"
          query={list}
          about={list.data && `${bytes(list.data.stored_bytes)} of at most ${bytes(list.data.limit_mb * MIB)} are stored.`}
          isEmpty={({ corpora: all }) => all.length === 0}
          empty={<p>No corpus was read yet. Write texts into the form, or drop a file.</p>}
        >
          {({ corpora: all }) => (
            <ul className="records" aria-label={`${count(all.length)} corpora`}>
              {all.map((one) => (
                <CorpusRow key={one.id} corpus={one} />
              ))}
            </ul>
          )}
        </QueryPanel>
        <CorpusForm job={job} onBegun={(begun) => change({ job: begun }, { push: true })} />
      </div>
      <Captures />
    </div>
  );
}
