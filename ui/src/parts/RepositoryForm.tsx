// The form that names a repository of the hub to look at, and the refusals of the hub. It shows a field for a token where
// one is needed.
import { useEffect, useState, type RefObject } from "react";
import type { UseMutationResult, UseQueryResult } from "@tanstack/react-query";
import { ErrorNotice } from "./ErrorNotice";
import { TokenField } from "./TokenField";

export interface Place {
  repo: string;
  revision: string;
}

export function RepositoryForm({
  place,
  example,
  shown,
  begin,
  token,
  tokenWhy,
  onPlace,
}: {
  /** The repository that is looked at now. */
  place: Place;
  example: string;
  /** What the repository offers. */
  shown: Pick<UseQueryResult, "isFetching" | "error" | "refetch">;
  /** The download that was begun from here. */
  begin: Pick<UseMutationResult, "error" | "reset">;
  token: RefObject<HTMLInputElement | null>;
  /** Why a token is needed; null where none is. */
  tokenWhy: string | null;
  onPlace: (place: Place) => void;
}) {
  const [repo, setRepo] = useState(place.repo);
  const [revision, setRevision] = useState(place.revision);
  const [isAsked, setAsked] = useState(false);
  useEffect(() => {
    setRepo(place.repo);
    setRevision(place.revision);
  }, [place.repo, place.revision]);
  const isBusy = shown.isFetching;
  const look = (next: Place) => {
    begin.reset();
    if (next.repo === place.repo && next.revision === place.revision) void shown.refetch();
    else onPlace(next);
  };
  const why = tokenWhy ?? (isAsked ? "For private and gated repositories." : null);
  return (
    <>
      <form
        className="flow"
        onSubmit={(event) => {
          event.preventDefault();
          look({ repo: repo.trim(), revision: revision.trim() });
        }}
      >
        <div className="fields">
          <label className="field wide">
            Repository
            <input
              value={repo}
              required
              maxLength={255}
              spellCheck={false}
              autoCapitalize="off"
              placeholder={example}
              onChange={(event) => setRepo(event.target.value)}
            />
          </label>
          <label className="field">
            Branch, tag or commit
            <input
              value={revision}
              maxLength={100}
              spellCheck={false}
              placeholder="main"
              onChange={(event) => setRevision(event.target.value)}
            />
          </label>
        </div>
        {why !== null && <TokenField field={token} why={why} />}
        <div className="row">
          <button type="submit" className="primary" disabled={repo.trim() === "" || isBusy}>
            Look at it
          </button>
          {why === null && (
            <button type="button" onClick={() => setAsked(true)}>
              Use a hub token
            </button>
          )}
          <span className="quiet" role="status">
            {isBusy ? "Asking the hub." : "This downloads nothing."}
          </span>
        </div>
      </form>
      {shown.error !== null && !isBusy && <ErrorNotice error={shown.error} onRetry={() => look(place)} />}
      {begin.error !== null && <ErrorNotice error={begin.error} />}
    </>
  );
}
