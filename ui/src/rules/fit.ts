// Whether a model fits the memory of each card, by its estimated need. The check before a load decides in the end.

export interface Place {
  name: string;
  /** MiB that are free now. */
  free: number;
  /** MiB that come back when the loaded model is unloaded. */
  returned: number;
}
export type Verdict = "fits" | "fits once the loaded model is unloaded" | "does not fit" | "not known";

interface CardFigures {
  smi_index: number;
  torch_index: number | null;
  name: string;
  free_mb: number;
}
interface Memory {
  cards: readonly CardFigures[];
  host: { available_mb: number };
}

/** The places where a model may be loaded: each card, or the memory of the machine where there is no card. */
export function places(memory: Memory, loaded: Record<string, number> | undefined): Place[] {
  const back = (device: string) => loaded?.[device] ?? 0;
  if (memory.cards.length === 0) {
    return [{ name: "this machine", free: memory.host.available_mb, returned: back("cpu") }];
  }
  return memory.cards.map((card) => ({
    name: `${card.smi_index}: ${card.name}`,
    free: card.free_mb,
    returned: card.torch_index === null ? 0 : back(`cuda:${card.torch_index}`),
  }));
}

export function verdict(needed: number | null | undefined, place: Place): Verdict {
  if (needed === null || needed === undefined || needed <= 0) return "not known";
  if (needed <= place.free) return "fits";
  return needed <= place.free + place.returned ? "fits once the loaded model is unloaded" : "does not fit";
}

/** Whether a model that fits no single card may fit over all of them. */
export function mayBeSplit(needed: number | null | undefined, all: readonly Place[]): boolean {
  const sum = all.reduce((total, { free, returned }) => total + free + returned, 0);
  const isNoneEnough = all.every((place) => verdict(needed, place) === "does not fit");
  return all.length > 1 && isNoneEnough && (needed ?? Infinity) <= sum;
}
