// The evidence of a circuit or an edge: its rung as filled steps and a number, and the phrase of the service.
const STEPS = [1, 2, 3] as const;

export function Rung({ rung, phrase, next }: { rung: number; phrase: string; next?: string | null }) {
  return (
    <span className="rung" data-rung={rung} title={next ?? undefined}>
      <span className="rung-steps" aria-hidden="true">
        {STEPS.map((step) => (
          <span key={step} data-filled={step <= rung || undefined} />
        ))}
      </span>
      <span className="rung-number">rung {rung}</span> <span>{phrase}</span>
    </span>
  );
}
