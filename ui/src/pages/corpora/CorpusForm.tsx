// The form that begins a corpus: texts that are written or dropped, a file of the machine of the service, or one of the hub.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { corpora, describedCorpus, readCorpus, type CorpusBody } from "../../api/corpora";
import { isEnded, job as asked } from "../../api/jobs";
import { attachments } from "../../api/queries";
import { saes } from "../../api/saes";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { NumberField } from "../../parts/NumberField";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { TokenField, useToken } from "../../parts/TokenField";
import { count } from "../../rules/bytes";
import { textsIn } from "../../rules/contrast";
import { TEXTS_MAXIMUM } from "../../rules/corpus";
import { useShortcut } from "../../shortcuts";
import { JobRow } from "../jobs/JobRow";
import { TextsField, type Texts } from "./TextsField";

const KINDS = [
  { value: "inline", label: "Texts" },
  { value: "local", label: "Local file", title: "A file on the machine of the service" },
  { value: "huggingface", label: "Hub file", title: "A file of a repository of data sets of the model hub" },
] as const;
const EMPTY = { local_path: "", repo_id: "", file_path: "", revision: "", text_field: "text" };
/** The most texts of a request that is shown to copy. */
const COPIED = 50;

export function CorpusForm({ job, onBegun }: { job: string; onBegun: (job: string) => void }) {
  const client = useQueryClient();
  const attached = useQuery(attachments);
  const [name, setName] = useState("");
  const [kind, setKind] = useState<CorpusBody["source"]>("inline");
  const [texts, setTexts] = useState<Texts>({ written: "", split: "lines", file: null });
  const [place, setPlace] = useState(EMPTY);
  const [sizes, setSizes] = useState({ max_tokens: 1_000_000, context: 128, examples: 20 });
  const token = useToken(place.repo_id.trim());
  const sent = texts.file?.texts ?? textsIn(texts.written, texts.split);
  const body: CorpusBody = { name: name.trim(), source: kind, ...sourceOf(kind, sent, place), ...sizes };
  const why =
    attached.data?.entries.length === 0
      ? "Attach an SAE first."
      : body.name === ""
        ? "Give it a name."
        : lacking(kind, sent.length, place);
  const begin = useMutation({
    mutationFn: () => readCorpus(kind === "huggingface" ? withToken(body, token.take()) : body),
    onSuccess: (begun) => {
      onBegun(begun);
      return client.invalidateQueries({ queryKey: corpora.queryKey });
    },
  });
  const canRun = why === null && !begin.isPending;
  useShortcut("send", () => begin.mutate(), canRun);
  const field = (key: keyof typeof EMPTY, label: string, example: string, most: number) => (
    <label className="field">
      {label}
      <input
        value={place[key]}
        maxLength={most}
        spellCheck={false}
        autoCapitalize="off"
        placeholder={example}
        onChange={(event) => setPlace({ ...place, [key]: event.target.value })}
      />
    </label>
  );
  const size = (key: keyof typeof sizes, label: string, least: number, most: number, title: string) => (
    <NumberField
      label={label}
      title={title}
      value={sizes[key]}
      least={least}
      most={most}
      onCommit={(value) => setSizes({ ...sizes, [key]: value })}
    />
  );
  return (
    <Panel title="Read a corpus" about={<Covers />}>
      <form
        className="flow"
        onSubmit={(event) => {
          event.preventDefault();
          if (canRun) begin.mutate();
        }}
      >
        <label className="field">
          Name
          <input value={name} maxLength={120} placeholder="sea stories" onChange={(event) => setName(event.target.value)} />
        </label>
        <Segmented label="Where the texts are" options={KINDS} value={kind} onChange={setKind} />
        {kind === "inline" && (
          <TextsField texts={texts} field={place.text_field} size={sent.length} onChange={setTexts} />
        )}
        {kind === "local" && field("local_path", "File on the machine of the service", "/data/stories.jsonl", 500)}
        {kind === "huggingface" && (
          <>
            {field("repo_id", "Repository of data sets", "owner/name", 255)}
            {field("file_path", "File in it", "train.jsonl", 500)}
            {field("revision", "Branch, tag or commit", "main", 100)}
            <TokenField field={token.field} why="For private and gated repositories." />
          </>
        )}
        <div className="corpus-sizes">
          <label className="number-field">
            Field of JSON Lines
            <input
              value={place.text_field}
              maxLength={100}
              spellCheck={false}
              title="The field of each line that has the text or the messages"
              onChange={(event) => setPlace({ ...place, text_field: event.target.value })}
            />
          </label>
          {size("max_tokens", "Tokens, at most", 1, 100_000_000, "The reading ends after so many tokens")}
          {size("context", "Context", 8, 4096, "The tokens that are read together; a longer text is cut")}
          {size("examples", "Examples", 1, 100, "The examples of each feature")}
        </div>
        <p className="quiet">
          The texts stay in the database of the service until the corpus is deleted, because examples are shown from them. Whoever
          may use the service can see them. They are in no log and in no live event.
        </p>
        <div className="row spread">
          <span className="quiet">{why ?? "Requests go first: beside them the reading takes at most 8 % of the time."}</span>
          <button type="submit" className="primary" disabled={!canRun}>
            {begin.isPending ? "Sending" : "Read them"}
          </button>
        </div>
        {begin.error !== null && <ErrorNotice error={begin.error} />}
      </form>
      {job !== "" && <Cut id={job} />}
      {why === null && sent.length <= COPIED && (
        <CopyCode sent={describedCorpus(body)} title="This corpus as curl or Python" />
      )}
    </Panel>
  );
}

/** The SAEs whose features will be read. */
function Covers() {
  const entries = useQuery(attachments).data?.entries;
  const known = useQuery(saes).data?.saes ?? [];
  if (entries === undefined) return null;
  if (entries.length === 0) {
    return (
      <>
        No SAE is attached, so there are no features to read. <Link to="/saes">Attach an SAE.</Link>
      </>
    );
  }
  const names = entries.map(({ sae_id, layer }) => `${known.find(({ id }) => id === sae_id)?.name ?? sae_id} at layer ${layer}`);
  return (
    <>
      It covers what is attached now: {names.join(", ")}. <Link to="/saes">Attach others</Link> before, to cover them too.
    </>
  );
}

/** Why the reading that was begun here has no result. While it goes on, the list shows it. */
function Cut({ id }: { id: string }) {
  const { data, error } = useQuery(asked(id));
  if (error !== null || data === undefined || !isEnded(data) || data.state === "done") return null;
  return <JobRow id={id} name="The reading" onDone={() => undefined} />;
}

function sourceOf(kind: CorpusBody["source"], texts: readonly unknown[], place: typeof EMPTY): Partial<CorpusBody> {
  const text_field = place.text_field.trim();
  if (kind === "inline") return { texts: texts as NonNullable<CorpusBody["texts"]> };
  if (kind === "local") return { local_path: place.local_path.trim(), text_field };
  const revision = place.revision.trim();
  return {
    ...{ repo_id: place.repo_id.trim(), file_path: place.file_path.trim(), text_field },
    ...(revision === "" ? {} : { revision }),
  };
}

function withToken(body: CorpusBody, hub_token: string | undefined): CorpusBody {
  return hub_token === undefined ? body : { ...body, hub_token };
}

/** What the source lacks; null where it is whole. */
function lacking(kind: CorpusBody["source"], texts: number, place: typeof EMPTY): string | null {
  if (kind === "inline") {
    if (texts === 0) return "Write texts, or choose a file.";
    return texts > TEXTS_MAXIMUM ? `A corpus that is sent has at most ${count(TEXTS_MAXIMUM)} texts.` : null;
  }
  if (place.text_field.trim() === "") return "Name the field of JSON Lines.";
  if (kind === "local") return place.local_path.trim() === "" ? "Name a file." : null;
  return place.repo_id.trim() === "" || place.file_path.trim() === "" ? "Name a repository and a file in it." : null;
}
