// The list of keys, from the table that binds them.
import { Fragment } from "react";
import { caps } from "../rules/keys";
import type { Shortcut } from "../rules/keys";
import { Dialog } from "./Dialog";

export function ShortcutHelp({
  shortcuts,
  isOpen,
  onClose,
}: {
  shortcuts: readonly Omit<Shortcut, "id">[];
  isOpen: boolean;
  onClose: () => void;
}) {
  const groups = [...new Set(shortcuts.map((shortcut) => shortcut.group))];
  return (
    <Dialog title="Keys" isOpen={isOpen} onClose={onClose}>
      <div className="shortcuts">
        {groups.map((group) => (
          <section key={group} aria-label={group}>
            <h3>{group}</h3>
            <dl>
              {shortcuts
                .filter((shortcut) => shortcut.group === group)
                .map(({ keys, says }) => (
                  <div key={keys}>
                    <dt>
                      <Keys keys={keys} />
                    </dt>
                    <dd>{says}</dd>
                  </div>
                ))}
            </dl>
          </section>
        ))}
      </div>
      <div className="row end">
        <button type="button" onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Keys({ keys }: { keys: string }) {
  return caps(keys).map((press, index) => (
    <Fragment key={index}>
      {index > 0 && <span className="quiet"> then </span>}
      {press.map((key, place) => (
        <Fragment key={key}>
          {place > 0 && "+"}
          <kbd>{key}</kbd>
        </Fragment>
      ))}
    </Fragment>
  ));
}
