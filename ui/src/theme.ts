// Dark or light. The choice is kept in this browser; without one, the page follows the system.

const NAME = "steerserve.theme";
export type Theme = "light" | "dark";

export function applyTheme(): void {
  const kept = localStorage.getItem(NAME);
  if (kept === "light" || kept === "dark") document.documentElement.dataset["theme"] = kept;
}

export function theme(): Theme {
  const kept = document.documentElement.dataset["theme"];
  if (kept === "light" || kept === "dark") return kept;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function switchTheme(): Theme {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset["theme"] = next;
  localStorage.setItem(NAME, next);
  return next;
}
