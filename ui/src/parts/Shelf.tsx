// A list of documents beside the one that is open.
import type { ReactNode } from "react";

export interface ShelfItem {
  id: string;
  name: string;
  /** Facts in a line under the name. */
  facts: ReactNode;
  isActive: boolean;
}

export function Shelf({
  label,
  items,
  selected,
  onSelect,
}: {
  label: string;
  items: readonly ShelfItem[];
  selected: string | undefined;
  onSelect: (id: string) => void;
}) {
  return (
    <ul className="shelf" aria-label={label}>
      {items.map(({ id, name, facts, isActive }) => (
        <li key={id}>
          <button type="button" aria-current={id === selected || undefined} onClick={() => onSelect(id)}>
            <span className="shelf-name">{name}</span>
            {isActive && <Active />}
            <span className="shelf-facts">{facts}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

/** What is active before the rest, which keeps its order. */
export function activeFirst<T extends { is_active: boolean }>(documents: readonly T[]): T[] {
  return [...documents].sort((a, b) => Number(b.is_active) - Number(a.is_active));
}

/** The mark of what is active now. */
export function Active() {
  return (
    <span className="status good">
      <span aria-hidden="true">●</span> active
    </span>
  );
}
