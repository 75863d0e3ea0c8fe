// The prompt: one text, or a conversation. Under it stand the sampling and the button that begins.
import { Segmented } from "../../parts/Segmented";
import { Chat, longer } from "./Chat";
import { Sampling } from "./Sampling";
import type { Steer } from "./useSteer";

const FORMS = [
  { value: "chat", label: "Conversation", title: "The model's own template renders the messages" },
  { value: "prompt", label: "Prompt", title: "The text goes to the model as it is" },
] as const;

export function Prompt({ steer }: { steer: Steer }) {
  const { state, change, text, run, stop, isRunning, canRun } = steer;
  return (
    <section className="panel prompt" aria-label="Prompt">
      <div className="row spread">
        <Segmented
          label="Form of the prompt"
          options={FORMS}
          value={state.as}
          onChange={(as) => change({ as, ...text.shown })}
        />
        {state.as === "chat" && (
          <button
            type="button"
            className="small quiet-button"
            onClick={() => text.edit({ ...text.shown, chat: longer(state.chat ?? []) })}
          >
            Add a message
          </button>
        )}
      </div>
      <div onBlur={text.flush}>
        {state.as === "prompt" ? (
          <textarea
            aria-label="Prompt"
            rows={3}
            placeholder="The text that the model continues"
            value={state.prompt}
            onChange={(event) => text.edit({ ...text.shown, prompt: event.target.value })}
          />
        ) : (
          <Chat messages={state.chat ?? []} onChange={(chat) => text.edit({ ...text.shown, chat })} />
        )}
      </div>
      <div className="prompt-foot">
        <Sampling state={state} onChange={steer.alter} />
        {/* one button, so that the focus stays on it */}
        <button
          type="button"
          className={isRunning ? "" : "primary"}
          disabled={!canRun && !isRunning}
          title={isRunning ? "Stop (Esc)" : why(steer)}
          onClick={() => (isRunning ? stop() : run())}
        >
          {isRunning ? "Stop" : "Generate"} {isRunning && <kbd>Esc</kbd>}
        </button>
      </div>
    </section>
  );
}

/** What the button does, or why it cannot. */
function why({ model, place, canRun }: Steer): string {
  if (canRun) return "Generate (Ctrl or ⌘ and Enter)";
  if (model === null) return "No model is loaded";
  if (place === null) return "No SAE is attached";
  return "Write a prompt first";
}
