// A search field with a list of what fits. Arrow keys move in the list, Enter takes, Escape closes.
import { useId, useState, type KeyboardEvent, type ReactNode, type RefObject } from "react";

export interface ComboOption {
  id: string;
  label: ReactNode;
  note?: string | undefined;
}

export function Combo({
  label,
  placeholder,
  query,
  onQuery,
  options,
  onChoose,
  status,
  input,
}: {
  label: string;
  placeholder: string;
  query: string;
  onQuery: (query: string) => void;
  options: readonly ComboOption[];
  onChoose: (id: string) => void;
  /** What the list says where it has no options, or beside them. */
  status?: ReactNode;
  input?: RefObject<HTMLInputElement | null>;
}) {
  const id = useId();
  const [isOpen, setOpen] = useState(false);
  const [at, setAt] = useState(0);
  const place = Math.min(at, options.length - 1);
  const isShown = isOpen && (options.length > 0 || (status !== undefined && status !== null));
  const choose = (option: ComboOption | undefined) => {
    if (option === undefined) return;
    setOpen(false);
    setAt(0);
    onChoose(option.id);
  };
  const keys = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      setOpen(true);
      if (isShown) setAt((place + step + options.length) % Math.max(1, options.length));
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) choose(isShown ? options[place] : undefined);
    else if (event.key === "Escape" && isShown) setOpen(false);
    else return;
    event.preventDefault();
  };
  return (
    <div className="combo" onBlur={(event) => !event.currentTarget.contains(event.relatedTarget) && setOpen(false)}>
      <input
        ref={input}
        type="search"
        role="combobox"
        aria-label={label}
        aria-expanded={isShown}
        aria-controls={`${id}-list`}
        aria-autocomplete="list"
        aria-activedescendant={isShown && options.length > 0 ? `${id}-${place}` : undefined}
        autoComplete="off"
        spellCheck={false}
        placeholder={placeholder}
        value={query}
        onFocus={() => setOpen(true)}
        onClick={() => setOpen(true)}
        onChange={(event) => {
          setOpen(true);
          setAt(0);
          onQuery(event.target.value);
        }}
        onKeyDown={keys}
      />
      <div className="combo-popup" hidden={!isShown}>
        <ul id={`${id}-list`} role="listbox" aria-label={label}>
          {options.map((option, index) => (
            <li
              key={option.id}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === place}
              // the field keeps the focus
              onPointerDown={(event) => event.preventDefault()}
              onPointerMove={() => setAt(index)}
              onClick={() => choose(option)}
            >
              <span>{option.label}</span>
              {option.note !== undefined && <span className="place">{option.note}</span>}
            </li>
          ))}
        </ul>
        {status !== undefined && status !== null && (
          <p className="combo-status" role="status">
            {status}
          </p>
        )}
      </div>
    </div>
  );
}
