// Patch sweeps: which values of one text, written into another, change what the model says next.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { jobsOf } from "../api/jobs";
import { describedPatch, patch, PATCHES } from "../api/patches";
import { sitesOf } from "../api/models";
import { models } from "../api/queries";
import { Copy } from "../parts/Copy";
import { CopyCode } from "../parts/CopyCode";
import { ErrorNotice } from "../parts/ErrorNotice";
import { Panel } from "../parts/Panel";
import { useLink } from "../parts/useLink";
import { bodyOf, EXAMPLE, lacking, offered, PATCH, type PatchState } from "../rules/patch";
import { useShortcut } from "../shortcuts";
import "../css/library.css";
import "../css/patch.css";
import { OtherJobs } from "./jobs/OtherJobs";
import { NoHooks } from "./NoHooks";
import { Result } from "./patch/Result";
import { Settings } from "./patch/Settings";
import { TextFields } from "./patch/TextFields";
import { DEMO } from "./steer/demo";

export default function Patch() {
  const [link, change] = useLink(PATCH);
  // the link has the settings of the job that is shown, until the next one begins
  const [draft, setDraft] = useState<Partial<PatchState>>({});
  const client = useQueryClient();
  const loaded = useQuery(models).data;
  const model = loaded?.models.find(({ id }) => id === loaded.loaded_model_id) ?? null;
  const isNew = link.clean === "" && link.corrupt === "" && link.job === "";
  const state: PatchState = { ...link, ...(isNew && model?.name === DEMO.model ? EXAMPLE : {}), ...draft };
  const alter = (part: Partial<PatchState>) => setDraft((before) => ({ ...before, ...part }));
  const lacks = lacking(state);
  const why = loaded !== undefined && model === null ? "Load a model first." : lacks;
  const sites = offered(useQuery(sitesOf(model?.id)).data?.sites ?? []);
  const body = bodyOf(state, sites);
  const begin = useMutation({
    mutationFn: () => patch(body),
    onSuccess: (job) => {
      change({ ...state, job }, { push: true });
      setDraft({});
      return client.invalidateQueries({ queryKey: jobsOf(PATCHES).queryKey });
    },
  });
  const canRun = model !== null && why === null && !begin.isPending;
  useShortcut("send", () => begin.mutate(), canRun);
  return (
    <div className="page">
      <header className="page-head">
        <div>
          <h1>Patch</h1>
          <p className="quiet">
            Two texts that lead to different next tokens. Values of one are written into the other, place by place, to see which of
            them carry the difference.
          </p>
        </div>
        <Copy text={location.href} label="Copy link to this view" says="Copy link" />
      </header>
      <NoHooks model={model} all={loaded?.models ?? []}>
        No values are replaced here.
      </NoHooks>
      <section className="panel" aria-label="Texts and places">
        <TextFields state={state} onChange={alter} />
        <Settings state={state} sites={sites} onChange={alter} />
        <div className="row spread">
          <span className="quiet">{why ?? "The texts are read without steering, beside running requests."}</span>
          <button type="button" className="primary" disabled={!canRun} onClick={() => begin.mutate()}>
            {begin.isPending ? "Sending" : "Patch"}
          </button>
        </div>
        {begin.error !== null && <ErrorNotice error={begin.error} />}
        {lacks === null && <CopyCode sent={describedPatch(body)} title="This sweep as curl or Python" />}
      </section>
      {link.job === "" ? (
        <Panel title="What the patches do">
          <p className="empty">
            {loaded !== undefined && model === null ? (
              <>
                No model is loaded. <Link to="/models">Load one.</Link>
              </>
            ) : (
              "Write two texts that differ in few words and have equally many tokens, such as “The Eiffel Tower is in” and “The Colosseum is in”."
            )}
          </p>
        </Panel>
      ) : (
        <Result key={link.job} id={link.job} asked={link} />
      )}
      <OtherJobs
        kind={PATCHES}
        one="sweep"
        shown={link.job}
        onOpen={(job) => {
          // the texts of another sweep are not known here
          change({ job, clean: "", corrupt: "", target: "", against: "" }, { push: true });
          setDraft({});
        }}
      />
    </div>
  );
}
