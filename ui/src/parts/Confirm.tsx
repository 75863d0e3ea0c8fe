// A question before an action that cuts something short or cannot be undone.
import type { ReactNode } from "react";
import { Dialog } from "./Dialog";

export function Confirm({
  title,
  action,
  isOpen,
  isDangerous = false,
  onConfirm,
  onClose,
  children,
}: {
  title: string;
  /** The word on the button: what will be done. */
  action: string;
  isOpen: boolean;
  isDangerous?: boolean;
  onConfirm: () => void;
  onClose: () => void;
  children: ReactNode;
}) {
  return (
    <Dialog title={title} isOpen={isOpen} onClose={onClose}>
      <div className="flow">{children}</div>
      <div className="row end">
        <button type="button" onClick={onClose} autoFocus>
          Cancel
        </button>
        <button
          type="button"
          className={isDangerous ? "danger" : "primary"}
          onClick={() => {
            onClose();
            onConfirm();
          }}
        >
          {action}
        </button>
      </div>
    </Dialog>
  );
}
