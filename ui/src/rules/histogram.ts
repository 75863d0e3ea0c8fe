// How often which values were observed.

export interface Bin {
  from: number;
  to: number;
  count: number;
}
export interface Distribution {
  /** How many values are 0: they are no part of the bins. */
  zeros: number;
  bins: readonly Bin[];
}

/** The values in at most about `most` bins of one round width. The value at a border belongs to the bin above it. */
export function distribution(values: readonly number[], most = 24): Distribution {
  const active = values.filter((value) => value !== 0);
  const zeros = values.length - active.length;
  if (active.length === 0) return { zeros, bins: [] };
  const low = Math.min(0, ...active);
  const high = Math.max(0, ...active);
  const width = round((high - low) / most);
  const first = Math.floor(low / width);
  const counts = new Array<number>(Math.floor(high / width) - first + 1).fill(0);
  for (const value of active) {
    const place = Math.floor(value / width) - first;
    counts[place] = (counts[place] ?? 0) + 1;
  }
  const at = (place: number) => Number(((first + place) * width).toPrecision(12));
  return { zeros, bins: counts.map((count, place) => ({ from: at(place), to: at(place + 1), count })) };
}

/** The next width of the form 1, 2 or 5 times a power of ten. */
function round(width: number): number {
  const power = 10 ** Math.floor(Math.log10(width));
  const step = [1, 2, 5].find((one) => one * power >= width) ?? 10;
  return Number((step * power).toPrecision(12));
}

/** The bins of a histogram that the service has made. `zeros` is the number of values that are 0. */
export function binned({ edges, counts }: { edges: readonly number[]; counts: readonly number[] }, zeros: number): Distribution {
  const at = (place: number) => Number((edges[place] ?? 0).toPrecision(3));
  return { zeros, bins: counts.map((count, place) => ({ from: at(place), to: at(place + 1), count })) };
}
