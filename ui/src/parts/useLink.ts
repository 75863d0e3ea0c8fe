// The state of a view that its link carries: read from the address, written back into it.
import { useCallback, useEffect, useMemo } from "react";
import { useSearchParams } from "react-router";
import { ApiError } from "../rules/errors";
import { faults, read, written, type State } from "../rules/link";
import { notifyError } from "./Notices";

/**
 * The state in the link, and a function that changes parts of it.
 *
 * Args: `fields` must be a constant outside the component. A change replaces the entry in the history of the browser;
 * with `{ push: true }` the way back leads to the state before it. Parts that cannot be read are named in a notice.
 */
export function useLink<F extends object>(fields: F) {
  const [query, setQuery] = useSearchParams();
  const state = useMemo(() => read(query, fields), [query, fields]);
  const wrong = useMemo(() => faults(query, fields).join("; "), [query, fields]);
  useEffect(() => {
    if (wrong !== "") notifyError(new ApiError(`A part of this link cannot be read and was left out: ${wrong}.`, "BAD_LINK"));
  }, [wrong]);
  const change = useCallback(
    (changed: Partial<State<F>>, { push = false } = {}) =>
      setQuery((before) => written(before, fields, changed), { replace: !push }),
    [setQuery, fields],
  );
  return [state, change] as const;
}
