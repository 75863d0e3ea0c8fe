// The clean and the corrupt text, and the metric of the token that follows them.
import { Segmented } from "../../parts/Segmented";
import type { PatchState } from "../../rules/patch";

const AS = [
  { value: "prompt", label: "Text", title: "The model goes on with the text itself" },
  { value: "chat", label: "Chat message", title: "The text is a message of a user, as the template of the model renders it" },
] as const;
const METRIC = [
  { value: "logit_difference", label: "logit difference", title: "The logit of one next token less that of another" },
  { value: "logprob", label: "log-probability", title: "The log-probability of one next token" },
  { value: "kl", label: "KL divergence", title: "How far the next token is from that of the clean text" },
] as const;

export function TextFields({ state, onChange }: { state: PatchState; onChange: (part: Partial<PatchState>) => void }) {
  const { metric } = state;
  const box = (name: "clean" | "corrupt", title: string, example: string) => (
    <label className="field">
      {title}
      <textarea
        rows={3}
        value={state[name]}
        placeholder={example}
        onChange={(event) => onChange({ [name]: event.target.value })}
      />
    </label>
  );
  const token = (name: "target" | "against", title: string, example: string) => (
    <label className="field">
      {title}
      <input
        value={state[name]}
        maxLength={200}
        spellCheck={false}
        autoCapitalize="off"
        placeholder={example}
        title="One token with the blank before it, if it has one; or its id, such as #1234"
        onChange={(event) => onChange({ [name]: event.target.value })}
      />
    </label>
  );
  return (
    <div className="flow">
      <Segmented label="What the texts are" options={AS} value={state.as} onChange={(as) => onChange({ as })} />
      <div className="patch-boxes">
        {box("clean", "Clean text", "The Eiffel Tower is in")}
        {box("corrupt", "Corrupt text, with as many tokens, or with pairs below", "The Colosseum is in")}
      </div>
      <div className="patch-settings">
        <div className="number-field">
          <span aria-hidden="true">Metric of the next token</span>
          <Segmented
            label="Metric of the next token"
            options={METRIC}
            value={metric}
            onChange={(next) => onChange({ metric: next })}
          />
        </div>
        {metric !== "kl" && token("target", "Token of the clean text", " Paris")}
        {metric === "logit_difference" && token("against", "Less that of", " Rome")}
      </div>
    </div>
  );
}
