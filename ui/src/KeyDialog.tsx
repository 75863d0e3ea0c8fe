// The question for the key of the service. It opens when the service refuses a request without a valid key.
import { useState, useSyncExternalStore } from "react";
import { useQueryClient } from "@tanstack/react-query";
import { isKeyNeeded, onKey, setKey } from "./api/key";
import { Dialog } from "./parts/Dialog";

export function KeyDialog() {
  const isNeeded = useSyncExternalStore(onKey, isKeyNeeded);
  const client = useQueryClient();
  const [draft, setDraft] = useState("");
  const [isDismissed, setDismissed] = useState(false);
  const send = (event: React.FormEvent) => {
    event.preventDefault();
    if (draft.trim() === "") return;
    setKey(draft.trim());
    setDraft("");
    void client.resetQueries();
  };
  if (isNeeded && isDismissed) {
    return (
      <div className="notices" role="region" aria-label="Key">
        <button type="button" className="primary" onClick={() => setDismissed(false)}>
          Enter the key of the service
        </button>
      </div>
    );
  }
  return (
    <Dialog title="This service needs a key" isOpen={isNeeded} onClose={() => setDismissed(isNeeded)}>
      <form className="flow" onSubmit={send}>
        <p>
          The operator has set <code>API_KEYS</code>. The key stays in this tab of the browser and goes when the tab is
          closed.
        </p>
        <label className="field">
          Key
          <input
            type="password"
            autoComplete="off"
            autoFocus
            value={draft}
            onChange={(event) => setDraft(event.target.value)}
          />
        </label>
        <div className="row end">
          <button type="submit" className="primary" disabled={draft.trim() === ""}>
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
