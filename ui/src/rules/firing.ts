// A recorded firing of a cluster or of an edge of a circuit, in one form for the list of both.

export interface Parts {
  before: string;
  span: string;
  after: string;
}
export interface Fired {
  layer: number | null;
  index: number;
  /** The position of the token; null for a member of a cluster, which may fire at several. */
  position: number | null;
  activation: number;
}
export interface Firing {
  kind: "cluster" | "circuit";
  id: number;
  /** The cluster or the circuit. */
  of: string;
  at: string;
  summary: string;
  request: string;
  choice: number;
  phase: string;
  start: number;
  end: number;
  fired: Fired[];
  isTruncated: boolean;
  /** The active features of the whole SAE; null where they were not counted. */
  ambient: number | null;
  /** The largest activation divided by its threshold; null for an edge. */
  score: number | null;
  /** The evidence of an edge at that moment, with the phrase of the service; null for a cluster. */
  evidence: { edge: string; rung: number; phrase: string; lag: number } | null;
  text: string | null;
  parts: Parts | null;
}

interface Facts {
  id: number;
  request_id: string;
  choice: number;
  phase: string;
  ambient_fired_count: number | null;
  summary: string;
  truncated: boolean;
  created_at: string;
  context_text: string | null;
  context_parts: Parts | null;
}
interface EdgeEnd {
  layer: number;
  feature_idx: number;
  pos: number;
  act: number;
}

export function ofCluster(
  event: Facts & {
    profile_id: string;
    pos_start: number;
    pos_end: number;
    fired_members: [number, number][];
    score: number;
  },
): Firing {
  return {
    ...common(event),
    kind: "cluster",
    of: event.profile_id,
    start: event.pos_start,
    end: event.pos_end,
    fired: event.fired_members.map(([index, activation]) => ({ layer: null, index, position: null, activation })),
    score: event.score,
    evidence: null,
  };
}

export function ofEdge(
  event: Facts & {
    circuit_id: string;
    edge_key: string;
    up: EdgeEnd;
    down: EdgeEnd;
    token_lag: number;
    edge_rung: number;
    edge_rung_language: string;
  },
): Firing {
  return {
    ...common(event),
    kind: "circuit",
    of: event.circuit_id,
    start: event.up.pos,
    end: event.down.pos,
    fired: [event.up, event.down].map(({ layer, feature_idx, pos, act }) => ({
      layer,
      index: feature_idx,
      position: pos,
      activation: act,
    })),
    score: null,
    evidence: { edge: event.edge_key, rung: event.edge_rung, phrase: event.edge_rung_language, lag: event.token_lag },
  };
}

function common(event: Facts) {
  return {
    id: event.id,
    at: event.created_at,
    summary: event.summary,
    request: event.request_id,
    choice: event.choice,
    phase: event.phase,
    isTruncated: event.truncated,
    ambient: event.ambient_fired_count,
    text: event.context_text,
    parts: event.context_parts === null ? null : atWords(event.context_parts),
  };
}

/** The parts with the blanks at the ends of the span outside of it, so that a mark begins and ends at words. */
export function atWords({ before, span, after }: Parts): Parts {
  const bare = span.trim();
  if (bare === "") return { before, span, after };
  const start = span.indexOf(bare);
  return { before: before + span.slice(0, start), span: bare, after: span.slice(start + bare.length) + after };
}

/** Firings of both kinds, newest first. */
export function newestFirst(...lists: readonly (readonly Firing[])[]): Firing[] {
  return lists.flat().sort((a, b) => Date.parse(b.at) - Date.parse(a.at) || b.id - a.id);
}

/** The name of a firing in a link: `circuit-20`. */
export function keyOf({ kind, id }: Pick<Firing, "kind" | "id">): string {
  return `${kind}-${id}`;
}

/** The kind and the number in a link; null for any other text. */
export function fromKey(key: string): Pick<Firing, "kind" | "id"> | null {
  const match = /^(cluster|circuit)-(\d{1,15})$/.exec(key);
  return match === null ? null : { kind: match[1] as Firing["kind"], id: Number(match[2]) };
}
