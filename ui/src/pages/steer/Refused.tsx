// Why a comparison was refused, and the next step.
import type { ReactNode } from "react";
import { Link } from "react-router";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { asApiError } from "../../rules/errors";
import type { Steer } from "./useSteer";

export function Refused({ error, steer }: { error: unknown; steer: Steer }) {
  return (
    <div className="flow">
      <ErrorNotice error={error} onRetry={() => steer.run()} />
      <NextStep code={asApiError(error).code.toUpperCase()} steer={steer} />
    </div>
  );
}

function NextStep({ code, steer }: { code: string; steer: Steer }): ReactNode {
  switch (code) {
    case "NO_CHAT_TEMPLATE":
      return (
        <p className="row">
          This model reads no conversations.
          <button type="button" onClick={() => steer.change({ as: "prompt", prompt: lastOf(steer) })}>
            Continue the message as a prompt
          </button>
        </p>
      );
    case "MODEL_NOT_LOADED":
    case "MODEL_NOT_RESIDENT":
      return (
        <p>
          <Link to="/models">Load a model</Link>, then try again.
        </p>
      );
    case "ENGINE_UNAVAILABLE":
      return steer.model !== null ? null : (
        <p>
          The process that held the model has ended. <Link to="/models">Load the model again</Link>, then try again. Its
          SAEs and live values come back with it.
        </p>
      );
    case "SAE_NOT_ATTACHED":
      return (
        <p>
          <Link to="/saes">Attach an SAE</Link>, then try again.
        </p>
      );
    case "STEERING_CHANGED":
      return (
        <p>Somebody changed the live values while the texts were written. Try again to compare with the new ones.</p>
      );
    case "CONTEXT_LENGTH_EXCEEDED":
      return <p>Shorten the prompt, or ask for fewer tokens.</p>;
    case "SAE_ACTIVATIONS_REFUSED":
      return <p>Ask for fewer tokens: the features of each token are part of the answer, and its size is bounded.</p>;
    default:
      return null;
  }
}

function lastOf({ state }: Steer): string {
  return state.chat?.findLast(({ role }) => role === "user")?.content ?? "";
}
