// What monitoring read at the last token of each answer: from the records of the history, and from live events.
//
// A live event has the largest activations only, and not all answers have an event. A record has everything. So events
// are shown at once, and records replace them.

interface Activation {
  feature_index: number;
  activation: number;
  label?: string;
  weight?: number;
}
interface Event {
  timestamp: string;
  request_id: string;
  position: number;
  activations: readonly Activation[];
}
interface Recorded {
  timestamp: string;
  request_id: string;
  sae_id: string;
  token_position: number;
  choice: number;
  activations: readonly Activation[];
  top_k: readonly Activation[];
  fired: number;
}
export interface Active {
  index: number;
  value: number;
  label: string | null;
  /** The number that ranks it, where that is not the value. */
  weight: number | undefined;
}
export interface Reading {
  key: string;
  /** Milliseconds since 1970. */
  at: number;
  request: string;
  position: number;
  /** How many features were active; null where only the event is here yet. */
  fired: number | null;
  top: readonly Active[];
  /** The values that are known, by the index of the feature. */
  values: ReadonlyMap<number, number>;
}

export function ofEvent({ timestamp, request_id, position, activations }: Event): Reading {
  return reading(timestamp, request_id, position, null, activations, activations);
}

export function ofRecord(record: Recorded): Reading {
  const { timestamp, request_id, token_position, fired, top_k, activations } = record;
  return reading(timestamp, request_id, token_position, fired, top_k, [...top_k, ...activations]);
}

/** Readings in the order of their times, the newest last, at most `most`. A record replaces the event of its answer. */
export function merged(records: readonly Reading[], events: readonly Reading[], most: number): readonly Reading[] {
  const byKey = new Map([...events, ...records].map((one) => [one.key, one]));
  return [...byKey.values()].sort((one, other) => one.at - other.at).slice(-most);
}

/** The newest reading. Only records have their features in another order than that of the values. */
export function newest(readings: readonly Reading[], isRecorded: boolean): Reading | undefined {
  return readings.findLast(({ fired }) => !isRecorded || fired !== null);
}

/** How many readings are newer than a reading. */
export function newer(readings: readonly Reading[], than: Reading | undefined): number {
  return than === undefined ? readings.length : readings.filter((one) => one.at > than.at).length;
}

/** The labels that records have, by the index of the feature. */
export function labelsIn(records: readonly Recorded[]): Map<number, string> {
  const labels = new Map<number, string>();
  for (const { activations, top_k } of records) {
    for (const { feature_index, label } of [...activations, ...top_k]) {
      if (label !== undefined) labels.set(feature_index, label);
    }
  }
  return labels;
}

/** The largest value in the tops of the readings, as the scale of their bars. */
export function largest(readings: readonly Reading[]): number {
  return Math.max(0, ...readings.flatMap(({ top }) => top.map(({ value }) => Math.abs(value))));
}

function reading(
  timestamp: string,
  request: string,
  position: number,
  fired: number | null,
  top: readonly Activation[],
  known: readonly Activation[],
): Reading {
  return {
    key: `${timestamp} ${request} ${position}`,
    at: Date.parse(timestamp),
    request,
    position,
    fired,
    top: top.map(({ feature_index, activation, label, weight }) => ({
      index: feature_index,
      value: activation,
      label: label ?? null,
      weight,
    })),
    values: new Map(known.map(({ feature_index, activation }) => [feature_index, activation])),
  };
}
