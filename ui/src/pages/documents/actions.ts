// What the pages of profiles, clusters, circuits and vectors do alike: ask again after an action, and save a document as a file.
import { useCallback } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { Noun } from "../../api/queries";
import { notifyError } from "../../parts/Notices";
import { saveFile } from "../../parts/saveFile";
import { fileName } from "../../rules/document";

/** What an action on one of the documents can change: each may end another one. */
const CHANGED: readonly Noun[] = ["profiles", "clusters", "circuits", "claims", "steering", "health", "sensing", "vectors"];

/** Marks all that an action on a document can change as stale, and settles when the shown answers are new. */
export function useRefresh(): () => Promise<void> {
  const client = useQueryClient();
  return useCallback(async () => {
    await Promise.all(CHANGED.map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  }, [client]);
}

/** An action on a document. Its refusal becomes a notice, unless the caller shows it. */
export function useAction<Argument, Answer>(
  act: (argument: Argument) => Promise<Answer>,
  { isShown = false, onSuccess }: { isShown?: boolean; onSuccess?: (answer: Answer, argument: Argument) => void } = {},
) {
  const refresh = useRefresh();
  return useMutation<Answer, Error, Argument>({
    mutationFn: act,
    onSettled: refresh,
    ...(onSuccess === undefined ? {} : { onSuccess: (answer: Answer, argument: Argument) => onSuccess(answer, argument) }),
    ...(isShown ? {} : { onError: notifyError }),
  });
}

/** Saves a document as a file. */
export function useExport(kind: string, read: (id: string) => Promise<string>) {
  return useMutation({
    mutationFn: async ({ id, name }: { id: string; name: string }) => saveFile(fileName(name, kind), await read(id)),
    onError: notifyError,
  });
}
