// Trains a vector or a probe on two boxes of texts or chats.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { models } from "../../api/queries";
import { describedTraining, train, trainedBy, type Kind, type TrainingBody } from "../../api/training";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";
import { NumberField } from "../../parts/NumberField";
import { Panel } from "../../parts/Panel";
import { Segmented } from "../../parts/Segmented";
import { TextBox } from "../../parts/TextBox";
import { useLink } from "../../parts/useLink";
import { abilitiesOf } from "../../rules/abilities";
import { firstTexts } from "../../rules/contrast";
import { SITES, TRAINING, type Site } from "../../rules/training";
import { JobRow } from "../jobs/JobRow";
import { DEMO } from "../steer/demo";
import { bodyOf, sizeOf, type Written } from "./written";

const FORMS = [
  { value: "lines", label: "a line", title: "Each line is a text" },
  { value: "blocks", label: "a block", title: "A text ends at an empty line" },
  { value: "chats", label: "a chat", title: "A chat ends at an empty line" },
] as const;
const READ = {
  last: "its last token",
  mean: "the mean of its tokens",
  mean_completion: "the mean of its completion: the text behind the prompt, or the last answer",
  index: "one token",
};
type ReadPosition = keyof typeof READ;
const GROUPS = [
  { value: "groups", label: "two groups", title: "Any texts with the concept, and any texts without it" },
  { value: "pairs", label: "pairs", title: "The first of one box belongs to the first of the other one, and so on" },
] as const;
const METHODS = { mean_difference: "difference of the means", pca: "principal component", logistic: "logistic regression" };
type Method = keyof typeof METHODS;

export function TrainPanel({ kind }: { kind: Kind }) {
  const [link, change] = useLink(TRAINING);
  const [draft, setDraft] = useState<Partial<Written>>({});
  const [name, setName] = useState("");
  const client = useQueryClient();
  const loaded = useQuery(models).data;
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id) ?? null;
  const isEmpty = link.with === "" && link.without === "";
  const written: Written = {
    ...(isEmpty ? firstTexts(model?.name === DEMO.model) : { with: link.with, without: link.without }),
    ...{ layers: link.layers, prompts: link.prompts },
    ...draft,
  };
  const sizes = [sizeOf(written.with, link.form), sizeOf(written.without, link.form)] as const;
  const asked = bodyOf(written, link, name.trim());
  const why =
    loaded === undefined
      ? "The models are being read."
      : model === null
        ? "Load a model first."
        : (abilitiesOf(model).why ?? (typeof asked === "string" ? asked : null));
  const body = typeof asked === "string" ? null : asked;
  const begin = useMutation({
    mutationFn: (sent: TrainingBody) => train(kind, sent),
    onSuccess: (job) => {
      change({ ...written, job }, { push: true });
      setDraft({});
      return client.invalidateQueries({ queryKey: ["jobs", "list"] });
    },
  });
  return (
    <Panel
      title="Train from texts"
      about={
        kind === "vector"
          ? "A direction from texts without the concept to texts with it, at each layer."
          : "A classifier that tells texts with the concept from texts without it, at each layer."
      }
    >
      <label className="field">
        Name
        <input value={name} maxLength={100} placeholder={`of the new ${kind}`} onChange={(event) => setName(event.target.value)} />
      </label>
      <div className="train-boxes">
        {(["with", "without"] as const).map((box, at) => (
          <TextBox
            key={box}
            title={box === "with" ? "Texts with the concept" : "Texts without it"}
            value={written[box]}
            size={sizes[at] ?? 0}
            rows={6}
            placeholder={box === "with" ? "One text, then another one, that have the concept" : "Texts of the same kind without it"}
            onChange={(value) => setDraft({ ...draft, [box]: value })}
          />
        ))}
      </div>
      <div className="field">
        <span aria-hidden="true">The boxes are</span>
        <Segmented
          label="The boxes are"
          options={GROUPS}
          value={link.pairs ? "pairs" : "groups"}
          onChange={(groups) => change({ pairs: groups === "pairs" })}
        />
      </div>
      {link.pairs && (
        <p className="quiet">
          A pair is a text with the concept and the same text without it: the first of one box with the first of the other one, and
          so on. Both are held out together. A prompt stands before both texts of a pair.
        </p>
      )}
      {link.pairs && link.form !== "chats" && (
        <TextBox
          title="Prompts of the pairs, if any"
          value={written.prompts}
          size={sizeOf(written.prompts, link.form)}
          rows={3}
          onChange={(prompts) => setDraft({ ...draft, prompts })}
        />
      )}
      <div className="field">
        <span aria-hidden="true">An example is</span>
        <Segmented label="An example is" options={FORMS} value={link.form} onChange={(form) => change({ form })} />
      </div>
      {link.form === "chats" && (
        <p className="quiet">
          A line that begins with <code>system:</code>, <code>user:</code> or <code>assistant:</code> begins a message.
        </p>
      )}
      <label className="field">
        Of each example is read
        <select value={link.read} onChange={(event) => change({ read: event.target.value as ReadPosition })}>
          {Object.entries(READ).map(([read, words]) => (
            <option key={read} value={read}>
              {words}
            </option>
          ))}
        </select>
      </label>
      {link.read === "index" && (
        <NumberField
          label="Token"
          title="0 is the first token of a text, −1 the last"
          value={link.index}
          least={-100_000}
          most={100_000}
          onCommit={(index) => change({ index })}
        />
      )}
      <label className="field">
        Site
        <select value={link.site} onChange={(event) => change({ site: event.target.value as Site })}>
          {Object.entries(SITES).map(([site, words]) => (
            <option key={site} value={site}>
              {site}: {words}
            </option>
          ))}
        </select>
      </label>
      {kind === "vector" && (
        <label className="field">
          Method
          <select value={link.method} onChange={(event) => change({ method: event.target.value as Method })}>
            {Object.entries(METHODS).map(([method, words]) => (
              <option key={method} value={method}>
                {words}
              </option>
            ))}
          </select>
        </label>
      )}
      <label className="field">
        Layers
        <input
          value={written.layers}
          placeholder="all, or 2, 5, 8-12"
          onChange={(event) => setDraft({ ...draft, layers: event.target.value })}
        />
      </label>
      <div className="row">
        <NumberField
          label="Held out"
          title="The part of each group that shapes no direction, from 0 to 0.95"
          value={link.holdout}
          least={0}
          most={0.95}
          step={0.05}
          onCommit={(holdout) => change({ holdout })}
        />
        <NumberField
          label="Seed"
          title="It decides which texts are held out"
          value={link.seed}
          least={0}
          most={2 ** 32 - 1}
          onCommit={(seed) => change({ seed })}
        />
      </div>
      <div className="row spread">
        <span className="quiet">{why ?? "Some fifteen texts in each box make the figures sure."}</span>
        <button
          type="button"
          className="primary"
          disabled={why !== null || body === null || begin.isPending}
          onClick={() => body !== null && begin.mutate(body)}
        >
          {begin.isPending ? "Sending" : "Train"}
        </button>
      </div>
      {begin.error !== null && <ErrorNotice error={begin.error} />}
      {link.job !== "" && (
        <JobRow
          key={link.job}
          id={link.job}
          name="The training"
          onDone={(job) => {
            const made = trainedBy(job);
            if (made === null) return;
            notify(`The ${kind} ${made.name} is trained.`);
            void client.invalidateQueries({ queryKey: [`${kind}s`] }).then(() => change({ id: made.id, job: "" }));
          }}
        />
      )}
      {why === null && body !== null && (
        <CopyCode sent={describedTraining(kind, body)} title="This training as curl or Python" />
      )}
    </Panel>
  );
}
