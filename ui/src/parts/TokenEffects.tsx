// The tokens whose logits a direction raises and lowers most, each with what it adds.
import { decimal } from "../rules/bytes";
import { chipText } from "../rules/tokens";
import { Bars } from "./Bars";

interface Effect {
  token_id: number;
  token: string;
  value: number;
}

export function TokenEffects({ promotes, suppresses }: { promotes: readonly Effect[]; suppresses: readonly Effect[] }) {
  const most = Math.max(0, ...[...promotes, ...suppresses].map(({ value }) => Math.abs(value)));
  const list = (name: string, effects: readonly Effect[]) => (
    <div>
      <h3>{name}</h3>
      <Bars
        label={name}
        scale={most}
        format={(value) => decimal(value).replace("-", "−")}
        bars={effects.map(({ token_id, token, value }) => ({
          id: String(token_id),
          label: <code className="token" title={`token ${token_id}`}>{chipText(token)}</code>,
          value,
        }))}
      />
    </div>
  );
  return (
    <div className="token-effects">
      {list("Promotes", promotes)}
      {list("Suppresses", suppresses)}
    </div>
  );
}
