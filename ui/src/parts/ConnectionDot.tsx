// Whether live events arrive, as a dot and a word.
const WORDS = {
  connecting: ["connecting", "Connecting to the service."],
  connected: ["live", "Live events arrive. Changes of others are shown at once."],
  lost: ["not live", "The connection is lost. The page reads the state every few seconds, and connects again by itself."],
} as const;

export function ConnectionDot({ state }: { state: keyof typeof WORDS }) {
  const [word, title] = WORDS[state];
  return (
    <span className={`connection ${state}`} role="status" title={title}>
      <span className="dot" aria-hidden="true" /> {word}
    </span>
  );
}
