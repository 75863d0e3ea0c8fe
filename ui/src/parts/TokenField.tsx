// A field for a token of the model hub. The token is read once, when it is sent, and the field is empty after that.
import { useCallback, useId, useRef, type RefObject } from "react";

/** The field's reference, and a function that takes the token out of the field. */
export function useToken() {
  const field = useRef<HTMLInputElement>(null);
  const take = useCallback((): string | undefined => {
    const value = field.current?.value.trim() ?? "";
    if (field.current !== null) field.current.value = "";
    return value === "" ? undefined : value;
  }, []);
  return { field, take };
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
        {why} It is sent with the next request only, and is kept nowhere.
      </span>
    </div>
  );
}
