// What can be done with any saved document: save it as a file, edit its name, delete it, see the request.
import { useState, type ReactNode } from "react";
import { Confirm } from "../../parts/Confirm";
import { CopyCode } from "../../parts/CopyCode";
import type { Sent } from "../../rules/snippet";

export function Foot({
  name,
  isActive,
  sent,
  sentTitle = "Activate it with curl or Python",
  isPending,
  isExporting = false,
  isDeleting,
  onExport,
  onDelete,
  children,
}: {
  name: string;
  isActive: boolean;
  /** The request that activates or uses the document. */
  sent: Sent;
  sentTitle?: string;
  /** Whether something is being done that lets the document not be deleted now. */
  isPending: boolean;
  isExporting?: boolean;
  isDeleting: boolean;
  /** Left out where a document has several formats, whose buttons are children. */
  onExport?: () => void;
  onDelete: () => void;
  /** More buttons. */
  children?: ReactNode;
}) {
  const [isAsking, setAsking] = useState(false);
  return (
    <>
      <div className="row document-foot">
        {onExport !== undefined && (
          <button type="button" disabled={isExporting} onClick={onExport}>
            {isExporting ? "Exporting" : "Export"}
          </button>
        )}
        {children}
        <button type="button" className="danger" disabled={isPending} onClick={() => setAsking(true)}>
          {isDeleting ? "Deleting" : "Delete"}
        </button>
      </div>
      <CopyCode sent={sent} title={sentTitle} />
      <Confirm
        title={`Delete ${name}?`}
        action="Delete"
        isDangerous
        isOpen={isAsking}
        onConfirm={onDelete}
        onClose={() => setAsking(false)}
      >
        <p>
          <b>{name}</b> is deleted for everyone{isActive && <>, and what it steers now ends</>}. Export it first if you may need
          it again.
        </p>
      </Confirm>
    </>
  );
}
