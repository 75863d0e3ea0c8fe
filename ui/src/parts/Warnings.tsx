// What the service remarked about something that it did all the same.
export function Warnings({ warnings, title = "Warnings" }: { warnings: readonly string[]; title?: string }) {
  if (warnings.length === 0) return null;
  return (
    <div className="notice notice-warn" role="status">
      <h3>{title}</h3>
      <ul className="bullets">
        {warnings.map((warning) => (
          <li key={warning}>{warning}</li>
        ))}
      </ul>
    </div>
  );
}
