// How far a feature can be turned: what it does at each strength, measured beside random directions of the same length.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { describedEffects, effectsOf, measure, type Effects, type EffectsBody } from "../../api/effects";
import { isEnded, job as asked } from "../../api/jobs";
import type { FeaturePlace } from "../../rules/places";
import { CopyCode } from "../../parts/CopyCode";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { Panel } from "../../parts/Panel";
import { useLink } from "../../parts/useLink";
import { ladderOf, wordsIn } from "../../rules/effects";
import { text } from "../../rules/link";
import { JobRow } from "../jobs/JobRow";
import "../../css/effects.css";
import { EffectResult } from "./EffectResult";
import { Kept } from "./Kept";
import { KeptResult } from "./KeptResult";

const LINK = { effects: text(), kept: text(), words: text(), control: text() };

export function Effect({ place, typical }: { place: FeaturePlace & { layer: number }; typical: number | null }) {
  const [link, change] = useLink(LINK);
  const [draft, setDraft] = useState<{ words?: string; control?: string }>({});
  const written = { words: link.words, control: link.control, ...draft };
  const [words, control] = [wordsIn(written.words), wordsIn(written.control)];
  const body: EffectsBody = {
    feature: { index: place.index, sae_id: place.sae, layer: place.layer },
    ...{ strengths: ladderOf(typical), tokens: 30, random_directions: 2 },
    ...(words.length > 0 ? { target: { words, ...(control.length > 0 ? { control } : {}) } } : {}),
  };
  const begin = useMutation({
    mutationFn: () => measure(body),
    onSuccess: (effects) => {
      change({ ...written, effects, kept: "" }, { push: true });
      setDraft({});
    },
  });
  const field = (name: "words" | "control", label: string) => (
    <label className="field">
      <span>{label}</span>
      <input
        type="text"
        value={written[name]}
        placeholder="sea, boat"
        onChange={(event) => setDraft({ ...draft, [name]: event.target.value })}
      />
    </label>
  );
  return (
    <Panel
      title="How far it can be turned"
      about="Texts are written at seven strengths, and the model without steering reads them again: how far the two are apart, beside random directions of the same length."
    >
      <form
        className="effects-form"
        onSubmit={(event) => {
          event.preventDefault();
          begin.mutate();
        }}
      >
        {field("words", "Words to look for")}
        {field("control", "Words to compare them with")}
        <button type="submit" className="primary" disabled={begin.isPending || (words.length === 0 && control.length > 0)}>
          {begin.isPending ? "Sending" : "Measure"}
        </button>
      </form>
      {begin.error !== null && <ErrorNotice error={begin.error} />}
      {link.kept !== "" ? (
        <KeptResult key={link.kept} id={link.kept} onClose={() => change({ kept: "" })} />
      ) : link.effects === "" ? (
        <CopyCode sent={describedEffects(body)} title="This measurement as curl or Python" />
      ) : (
        <Measured key={link.effects} id={link.effects} place={place} />
      )}
      <Kept place={place} shown={link.kept} onShow={(kept) => change({ kept }, { push: true })} />
    </Panel>
  );
}

function Measured({ id, place }: { id: string; place: FeaturePlace & { layer: number } }) {
  const { data } = useQuery(asked(id));
  const found: Effects | null = data !== undefined && isEnded(data) ? effectsOf(data) : null;
  const client = useQueryClient();
  // the service keeps a result when it is done
  const done = () => void client.invalidateQueries({ queryKey: ["effects"] });
  if (found === null) return <JobRow id={id} name="The measurement" onDone={done} />;
  return (
    <>
      <EffectResult found={found} place={place} />
      {found.not_kept !== null && <p className="stale">This result is not kept: {found.not_kept}</p>}
    </>
  );
}
