// The key of the service, where it needs one. It stays in this tab (sessionStorage) and is sent as a header only.

const NAME = "steerserve.key";
const listeners = new Set<() => void>();
let isNeeded = false;

export function key(): string | null {
  return sessionStorage.getItem(NAME);
}

export function setKey(value: string): void {
  sessionStorage.setItem(NAME, value);
  isNeeded = false;
  tell();
}

/** Forget the key and ask for another one: the service refused it, or asked for one. */
export function refuseKey(): void {
  if (isNeeded && key() === null) return;
  sessionStorage.removeItem(NAME);
  isNeeded = true;
  tell();
}

export function isKeyNeeded(): boolean {
  return isNeeded;
}

export function onKey(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function keyHeader(): Record<string, string> {
  const value = key();
  return value === null ? {} : { Authorization: `Bearer ${value}` };
}

function tell(): void {
  for (const listener of listeners) listener();
}
