// Which chip stands above or below another one.

/**
 * The number of the chip in the next line (1) or the line before (-1) that is nearest to a chip; the chip's own number
 * where there is no such line.
 */
export function across(list: HTMLElement | null, id: string, direction: 1 | -1): number {
  const chip = document.getElementById(id);
  const own = Number(chip?.dataset["i"] ?? 0);
  if (list === null || chip === null) return own;
  const from = chip.getBoundingClientRect();
  const middle = (from.left + from.right) / 2;
  let best = own;
  let distance = Infinity;
  let line: number | null = null;
  for (let next: Element | null = step(chip, direction); next !== null; next = step(next, direction)) {
    const place = next.getBoundingClientRect();
    if (Math.abs(place.top - from.top) < from.height / 2) continue;
    line ??= place.top;
    if (Math.abs(place.top - line) > from.height / 2) break;
    const away = Math.abs((place.left + place.right) / 2 - middle);
    if (away < distance) {
      distance = away;
      best = Number((next as HTMLElement).dataset["i"]);
    }
  }
  return best;
}

/** The chip after or before a chip, also in the next block. */
function step(chip: Element, direction: 1 | -1): Element | null {
  const next = direction === 1 ? chip.nextElementSibling : chip.previousElementSibling;
  if (next !== null && (next as HTMLElement).dataset["i"] !== undefined) return next;
  const block = direction === 1 ? chip.parentElement?.nextElementSibling : chip.parentElement?.previousElementSibling;
  const chips = block?.querySelectorAll("[data-i]");
  return (direction === 1 ? chips?.[0] : chips?.[chips.length - 1]) ?? null;
}
