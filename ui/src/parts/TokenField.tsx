// A field for a token of the model hub. When the token is sent, the field becomes empty, and the page holds the token for
// further requests about the same repository. It is in no cache and no storage.
import { useCallback, useId, useRef, useState, type RefObject } from "react";

/** The field's reference, a function that answers the token for a repository, and whether there is one. */
export function useToken(repository: string) {
  const field = useRef<HTMLInputElement>(null);
  const [heldFor, setHeldFor] = useState<string | null>(null);
  const held = useRef<{ repository: string; value: string }>(null);
  const take = useCallback((): string | undefined => {
    const value = field.current?.value.trim() ?? "";
    if (field.current !== null) field.current.value = "";
    if (value !== "") {
      held.current = { repository, value };
      setHeldFor(repository);
    }
    return held.current?.repository === repository ? held.current.value : undefined;
  }, [repository]);
  return { field, take, isHeld: heldFor === repository };
}

export function TokenField({ field, why }: { field: RefObject<HTMLInputElement | null>; why: string }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Hub token</label>
      <input
        ref={field}
        id={id}
        type="password"
        autoComplete="off"
        autoCapitalize="off"
        spellCheck={false}
        aria-describedby={`${id}-why`}
      />
      <span id={`${id}-why`} className="quiet">
        {why} It is sent with your requests about this repository, and forgotten when you leave the page.
      </span>
    </div>
  );
}
