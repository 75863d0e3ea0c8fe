// Where an edit acts.
import { useState } from "react";
import type { PositionName, Positions } from "../../../rules/edits";
import { WHERE } from "../../../rules/editWords";
import { ROLES } from "../../../rules/steer";
import { JsonField } from "./JsonField";

const FIRST: Record<string, Positions> = {
  after: { after_text: "." },
  roles: { roles: ["user"] },
  own: { generated_window: [0, 10] },
};

export function PositionsField({
  positions,
  isChat,
  onChange,
  onWrong,
}: {
  positions: Positions | undefined;
  /** Whether the prompt is a conversation, whose messages have roles. */
  isChat: boolean;
  onChange: (positions: Positions | undefined) => void;
  onWrong: (isWrong: boolean) => void;
}) {
  const [kind, setKind] = useState(() => kindOf(positions));
  const object = typeof positions === "object" ? positions : {};
  const choose = (next: string) => {
    setKind(next);
    onWrong(false);
    onChange(next === "all" ? undefined : (FIRST[next] ?? (next as PositionName)));
  };
  return (
    <>
      <label className="field">
        Where
        <select value={kind} onChange={(event) => choose(event.target.value)}>
          {Object.entries(WHERE).map(([name, words]) => (
            <option key={name} value={name}>
              {words}
            </option>
          ))}
          <option value="after">in the answer, after a text</option>
          {(isChat || kind === "roles") && <option value="roles">in the messages of one role</option>}
          <option value="own">at positions of my own, as JSON</option>
        </select>
      </label>
      {kind === "after" && (
        <label className="field">
          After the text
          <input
            required
            value={String(object["after_text"] ?? "")}
            onChange={(event) => {
              onWrong(event.target.value === "");
              onChange({ after_text: event.target.value });
            }}
          />
        </label>
      )}
      {kind === "roles" && (
        <label className="field">
          Messages of
          <select
            value={String((object["roles"] as string[] | undefined)?.[0])}
            onChange={(event) => onChange({ roles: [event.target.value] })}
          >
            {ROLES.map((role) => (
              <option key={role}>{role}</option>
            ))}
          </select>
        </label>
      )}
      {kind === "own" && (
        <JsonField
          label="Positions, as the field positions of a request has them"
          value={object}
          onChange={onChange}
          onWrong={onWrong}
        />
      )}
    </>
  );
}

function kindOf(positions: Positions | undefined): string {
  if (positions === undefined) return "all";
  if (typeof positions === "string") return positions;
  const keys = Object.keys(positions);
  if (keys.length === 1 && keys[0] === "after_text") return "after";
  return keys.length === 1 && (positions["roles"] as unknown[] | undefined)?.length === 1 ? "roles" : "own";
}
