// The last state of the page, kept in this tab, so that the way back from another page finds it.
const NAME = "steerserve.steer";

export function remembered(): string | null {
  return sessionStorage.getItem(NAME);
}

export function remember(query: string): void {
  if (query === "") sessionStorage.removeItem(NAME);
  else sessionStorage.setItem(NAME, query);
}
