// The form that names files on the machine of the service. The files stay where they are.
import type { ReactNode } from "react";
import { ErrorNotice } from "./ErrorNotice";

export function LocalForm({
  path,
  onPath,
  example,
  about,
  work,
  children,
}: {
  path: string;
  onPath: (path: string) => void;
  example: string;
  /** Which files are meant. */
  about: string;
  /** The registration. */
  work: { isPending: boolean; error: Error | null; mutate: () => void };
  /** Further fields. */
  children?: ReactNode;
}) {
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        work.mutate();
      }}
    >
      <label className="field">
        Folder or file on the machine of the service
        <input value={path} required maxLength={500} spellCheck={false} placeholder={example} onChange={(event) => onPath(event.target.value)} />
      </label>
      <p className="quiet">{about}</p>
      {children}
      <div className="row">
        <button type="submit" className="primary" disabled={path.trim() === "" || work.isPending}>
          {work.isPending ? "Reading" : "Register"}
        </button>
      </div>
      {work.error !== null && <ErrorNotice error={work.error} />}
    </form>
  );
}
