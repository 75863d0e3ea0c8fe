// The messages of a conversation.
import { ROLES, type Message } from "../../rules/steer";

const EMPTY: Message = { role: "user", content: "" };

export function Chat({
  messages,
  onChange,
}: {
  messages: readonly Message[];
  onChange: (messages: Message[]) => void;
}) {
  const all = messages.length === 0 ? [EMPTY] : messages;
  const set = (place: number, changed: Partial<Message>) =>
    onChange(all.map((message, index) => (index === place ? { ...message, ...changed } : message)));
  return (
    <div className="chat">
      <ol aria-label="Conversation">
        {all.map(({ role, content }, place) => (
          <li key={place} data-role={role}>
            <select
              aria-label={`Role of message ${place + 1}`}
              value={role}
              onChange={(event) => set(place, { role: event.target.value })}
            >
              {[...new Set([...ROLES, role])].map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
            <textarea
              aria-label={`Message ${place + 1}, of the ${role}`}
              rows={rows(content)}
              placeholder={place === 0 ? "Ask the model something" : "The next message"}
              value={content}
              onChange={(event) => set(place, { content: event.target.value })}
            />
            {all.length > 1 && (
              <button
                type="button"
                className="small"
                aria-label={`Remove message ${place + 1}`}
                onClick={() => onChange(all.filter((_, index) => index !== place))}
              >
                ✕
              </button>
            )}
          </li>
        ))}
      </ol>
    </div>
  );
}

/** The lines that a text takes, at least one and at most twelve. */
function rows(text: string): number {
  const lines = text.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / 80)), 0);
  return Math.min(12, lines);
}

/** The conversation with a further message, of the one whose turn it is. */
export function longer(messages: readonly Message[]): Message[] {
  const all = messages.length === 0 ? [EMPTY] : messages;
  return [...all, { role: all.at(-1)?.role === "user" ? "assistant" : "user", content: "" }];
}
