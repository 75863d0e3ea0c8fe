// The features that tell two groups of texts apart.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { contrast, CONTRASTS, describedContrast, type ContrastBody } from "../api/contrast";
import { jobsOf } from "../api/jobs";
import { attachments, models } from "../api/queries";
import { Copy } from "../parts/Copy";
import { CopyCode } from "../parts/CopyCode";
import { ErrorNotice } from "../parts/ErrorNotice";
import { Panel } from "../parts/Panel";
import { TextBox } from "../parts/TextBox";
import { useLink } from "../parts/useLink";
import { CONTRAST, firstTexts, lacking, textsIn } from "../rules/contrast";
import { keyOf } from "../rules/steer";
import { useShortcut } from "../shortcuts";
import "../css/contrast.css";
import { Result } from "./contrast/Result";
import { Settings } from "./contrast/Settings";
import { OtherJobs } from "./jobs/OtherJobs";
import { NoHooks } from "./NoHooks";
import { DEMO } from "./steer/demo";

export default function Contrast() {
  const [link, change] = useLink(CONTRAST);
  const [draft, setDraft] = useState<{ with?: string; without?: string }>({});
  const client = useQueryClient();
  const loaded = useQuery(models).data;
  const attached = useQuery(attachments);
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id) ?? null;
  const places = attached.data?.entries ?? [];
  const place = places.find((entry) => keyOf(entry) === link.sae) ?? places[0] ?? null;
  const isEmpty = link.with === "" && link.without === "";
  const written = { ...(isEmpty ? firstTexts(model?.name === DEMO.model) : { with: link.with, without: link.without }), ...draft };
  const positives = textsIn(written.with, link.split);
  const negatives = textsIn(written.without, link.split);
  const why = place === null ? "Attach an SAE first." : lacking(positives, negatives);
  const body: ContrastBody = {
    ...{ positives, negatives, pool: link.pool, top: link.top, holdout: link.holdout, seed: link.seed },
    examples: true,
    ...(place === null ? {} : { sae_id: place.sae_id, layer: place.layer }),
  };
  const begin = useMutation({
    mutationFn: () => contrast(body),
    onSuccess: (job) => {
      change({ ...written, job }, { push: true });
      setDraft({});
      return client.invalidateQueries({ queryKey: jobsOf(CONTRASTS).queryKey });
    },
  });
  const canRun = why === null && !begin.isPending;
  useShortcut("send", () => begin.mutate(), canRun);
  const box = (name: "with" | "without", title: string, texts: readonly string[]) => (
    <TextBox
      title={title}
      value={written[name]}
      size={texts.length}
      rows={8}
      placeholder={name === "with" ? "One text, then another one, that have the concept" : "Texts of the same kind without it"}
      onChange={(value) => setDraft({ ...draft, [name]: value })}
    />
  );
  return (
    <div className="page">
      <header className="page-head">
        <div>
          <h1>Contrast</h1>
          <p className="quiet">Two groups of texts, and the features that tell one from the other.</p>
        </div>
        <Copy text={location.href} label="Copy link to this view" says="Copy link" />
      </header>
      <NoHooks model={model} all={loaded?.models ?? []}>
        Features are read of no text here.
      </NoHooks>
      <section className="panel" aria-label="Texts">
        <div className="contrast-boxes">
          {box("with", "Texts with the concept", positives)}
          {box("without", "Texts without it", negatives)}
        </div>
        <Settings link={link} places={places} place={place} onChange={change} />
        <div className="row spread">
          <span className="quiet">{why ?? "The texts are read without steering, beside running requests."}</span>
          <button type="button" className="primary" disabled={!canRun} onClick={() => begin.mutate()}>
            {begin.isPending ? "Sending" : "Compare"}
          </button>
        </div>
        {begin.error !== null && <ErrorNotice error={begin.error} />}
        {why === null && <CopyCode sent={describedContrast(body)} title="This comparison as curl or Python" />}
      </section>
      {link.job === "" ? (
        <Panel title="Features">
          <p className="empty">
            {place === null && attached.data !== undefined ? (
              <>
                No SAE is attached, so there are no features to compare. <Link to="/saes">Attach an SAE.</Link>
              </>
            ) : (
              "Compare the texts above, or write others. Some fifteen texts in each box make the figures sure."
            )}
          </p>
        </Panel>
      ) : (
        <Result key={link.job} id={link.job} />
      )}
      <OtherJobs
        kind={CONTRASTS}
        one="comparison"
        shown={link.job}
        onOpen={(job) => change({ job }, { push: true })}
      />
    </div>
  );
}
