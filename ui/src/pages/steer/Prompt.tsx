// The prompt: one text, or a conversation. Under it stand the sampling and the button that begins.
import { useRef } from "react";
import { Segmented } from "../../parts/Segmented";
import { MESSAGES_MAXIMUM } from "../../rules/steer";
import { Chat, longer } from "./Chat";
import { Sampling } from "./Sampling";
import type { Steer } from "./useSteer";

const FORMS = [
  { value: "chat", label: "Conversation", title: "The model's own template renders the messages" },
  { value: "prompt", label: "Prompt", title: "The text goes to the model as it is" },
] as const;

export function Prompt({ steer }: { steer: Steer }) {
  const { state, change, text } = steer;
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
            disabled={(state.chat ?? []).length >= MESSAGES_MAXIMUM}
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
        <Sampling state={state} takesSeed={steer.able?.scores !== false} onChange={steer.alter} />
        <Begin steer={steer} />
      </div>
    </section>
  );
}

/** One button that begins and stops, so that the focus stays on it. */
function Begin({ steer }: { steer: Steer }) {
  const { run, stop, isRunning, canRun } = steer;
  // leaving a field begins a comparison, so the word of the button may change while the pointer is down
  const wasRunning = useRef(false);
  return (
    <button
      type="button"
      className={isRunning ? "" : "primary"}
      disabled={!canRun && !isRunning}
      title={isRunning ? "Stop (Esc)" : why(steer)}
      onPointerDown={() => {
        wasRunning.current = isRunning;
      }}
      onClick={({ detail }) => {
        const isByPointer = detail > 0;
        if (isByPointer ? wasRunning.current : isRunning) stop();
        else run();
      }}
    >
      {isRunning ? "Stop" : "Generate"} {isRunning && <kbd>Esc</kbd>}
    </button>
  );
}

/** What the button does, or why it cannot. */
function why({ model, able, lacking, canRun }: Steer): string {
  if (canRun) return "Generate (Ctrl or ⌘ and Enter)";
  if (model === null) return "No model is loaded";
  if (able?.writes === false) return "This model writes no text";
  if (lacking.length > 0) return "Attach the SAE of all features, or remove those that it has";
  return "Write a prompt first";
}
