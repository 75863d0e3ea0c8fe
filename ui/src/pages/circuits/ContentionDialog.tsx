// Another circuit holds a layer: which one, which features both steer, and what the service measured of such a pair.
import { Dialog } from "../../parts/Dialog";
import type { Contention } from "../../rules/contention";

export function ContentionDialog({
  name,
  message,
  contention,
  onOpen,
  onConfirm,
  onClose,
}: {
  name: string;
  message: string;
  contention: Contention;
  onOpen: (id: string) => void;
  onConfirm: () => void;
  onClose: () => void;
}) {
  const { holders, collisions, measured, isOverridable } = contention;
  const leave = (action: () => void) => () => {
    onClose();
    action();
  };
  return (
    <Dialog title={isOverridable ? `Activate ${name} beside another circuit?` : `${name} cannot serve now`} isOpen onClose={onClose}>
      <div className="flow">
        <p>The service says: {message}</p>
        {holders.length > 0 && (
          <section aria-label="Who holds the layers">
            <h3>Held layers</h3>
            <ul className="bullets">
              {holders.map(({ id, name: holder, layers }) => (
                <li key={id}>
                  {layers.length === 1 ? "Layer" : "Layers"} {layers.join(", ")}:{" "}
                  <button type="button" className="plain-link" onClick={leave(() => onOpen(id))}>
                    {holder}
                  </button>
                </li>
              ))}
            </ul>
          </section>
        )}
        {collisions.length > 0 && (
          <section aria-label="Features that both steer">
            <h3>Features that both steer</h3>
            <ul className="bullets">
              {collisions.map(({ layer, feature, name: holder }) => (
                <li key={`${layer}:${feature}`}>
                  <span className="place">
                    {layer}:{feature}
                  </span>{" "}
                  of {holder}
                </li>
              ))}
            </ul>
          </section>
        )}
        {measured.length > 0 && (
          <details>
            <summary>What was measured</summary>
            <table className="facts">
              <tbody>
                {measured.map(([what, says]) => (
                  <tr key={what}>
                    <th scope="row">{what}</th>
                    <td>{says}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </details>
        )}
      </div>
      <div className="row end">
        <button type="button" onClick={onClose} autoFocus>
          {isOverridable ? "Cancel" : "Close"}
        </button>
        {isOverridable && (
          <button type="button" className="primary" onClick={leave(onConfirm)}>
            Activate both
          </button>
        )}
      </div>
    </Dialog>
  );
}
