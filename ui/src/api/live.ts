// Live events: the one connection, and the one place where its events reach the answers that the pages show.
//
// An event either writes to the cached answers or marks them as stale. A page that draws events themselves, such as the
// chart of activations, takes them with `useLiveEvent`.
import { useEffect, useRef, useSyncExternalStore } from "react";
import { skipToken, useQuery, type QueryClient } from "@tanstack/react-query";
import { io, type Socket } from "socket.io-client";
import { base } from "./client";
import { isKeyNeeded, key, keyHeader, onKey } from "./key";
import type { Noun } from "./queries";

export type Connection = "connecting" | "connected" | "lost";
export type Payload = Record<string, unknown>;

/** The beginning of the keys of answers: a noun, or a noun and a part of its answers. */
type Part = Noun | `${Noun} ${string}`;

/** The answers that an event makes stale. */
const STALE: Record<string, readonly Part[]> = {
  "model:download:complete": ["models"],
  "model:download:error": ["models"],
  "model:load:complete": ["models", "health", "attachments", "steering", "saes"],
  "model:load:error": ["models", "health"],
  "model:unload:complete": ["models", "health", "attachments", "steering", "saes", "features", "monitoring"],
  "model:replica": ["models", "health"],
  "model:lease": ["models", "health"],
  "sae:attached": ["attachments", "saes", "health", "models", "steering", "features", "monitoring"],
  "sae:detached": ["attachments", "saes", "health", "models", "steering", "features", "monitoring"],
  "sae:download:complete": ["saes"],
  "sae:download:error": ["saes"],
  "steering:update": ["steering", "health", "profiles", "clusters", "circuits", "claims", "sensing"],
  "monitoring:state": ["monitoring", "readings", "attachments"],
  "monitoring:activation": ["readings", "monitoring state"],
  "sensing:event": ["sensing cluster"],
  "circuit:sensing:event": ["sensing circuit"],
  "job:progress": ["jobs"],
  "job:done": ["jobs"],
};
/** Events of progress and the key of the answer that holds the last report of each piece of work. */
const PROGRESS: Record<string, readonly [Noun, string, idField: string]> = {
  "model:download:progress": ["models", "download", "modelId"],
  "model:load:progress": ["models", "load", "modelId"],
  "sae:download:progress": ["saes", "download", "saeId"],
};
/** Events that end a piece of work, with the same parts as its progress. */
const ENDED: typeof PROGRESS = {
  "model:download:complete": ["models", "download", "modelId"],
  "model:download:error": ["models", "download", "modelId"],
  "model:load:complete": ["models", "load", "modelId"],
  "model:load:error": ["models", "load", "modelId"],
  "sae:download:complete": ["saes", "download", "saeId"],
  "sae:download:error": ["saes", "download", "saeId"],
};
/** The least time between two refreshes of one noun by events, in milliseconds. */
const CALM = 250;
/** The same for answers that change with the texts that are written. */
const CALMER: Partial<Record<Part, number>> = { readings: 2_000, "monitoring state": 2_000, "sensing cluster": 1_000, "sensing circuit": 1_000 };

let socket: Socket | null = null;
let connection: Connection = "connecting";
let changedAt = Date.now();
const watchers = new Set<() => void>();
const calming = new Map<Part, { again: boolean }>();
const drawn = new Map<string, Set<(payload: Payload) => void>>();

/** Connect, and keep the connection until the returned function is called. */
export function connect(client: QueryClient): () => void {
  const address = new URL(base());
  const open = () => {
    socket?.disconnect();
    if (isKeyNeeded()) return become("lost");
    become("connecting");
    socket = io(address.origin, {
      path: `${address.pathname}socket.io`,
      // a browser cannot send a key with a WebSocket
      transports: key() === null ? ["websocket", "polling"] : ["polling"],
      extraHeaders: keyHeader(),
      reconnectionDelayMax: 5_000,
    });
    socket.on("connect", () => {
      if (connection === "lost") void client.invalidateQueries();
      become("connected");
    });
    socket.on("disconnect", () => lose(client));
    socket.on("connect_error", () => lose(client));
    socket.onAny((name: string, payload: Payload) => arrived(client, name, payload));
  };
  open();
  const end = onKey(open);
  return () => {
    end();
    socket?.disconnect();
    socket = null;
  };
}

/** What an event does to the answers and to the pages that draw it. */
export function arrived(client: QueryClient, name: string, payload: Payload): void {
  const progress = PROGRESS[name];
  if (progress !== undefined) {
    const [noun, work, idField] = progress;
    const key = progressKey(noun, work, payload[idField]);
    // the first report of a piece of work, which somebody else may have begun
    if (client.getQueryData(key) == null) refresh(client, noun);
    client.setQueryData(key, payload);
  }
  const ended = ENDED[name];
  if (ended !== undefined) {
    const [noun, work, id] = ended;
    client.setQueryData(progressKey(noun, work, payload[id]), null);
  }
  for (const part of STALE[name] ?? []) refresh(client, part);
  for (const draw of drawn.get(name) ?? []) draw(payload);
}

/** The last report of a piece of work that runs; undefined where none runs or none was reported yet. */
export function useProgress(noun: Noun, work: "download" | "load", id: unknown): Payload | undefined {
  const key = progressKey(noun, work, id);
  return useQuery<Payload | null>({ queryKey: key, queryFn: skipToken }).data ?? undefined;
}

function progressKey(noun: Noun, work: string, id: unknown) {
  return ["progress", noun, work, id];
}

/** Mark answers as stale: at once, and where more events follow, once more when they calm down. */
function refresh(client: QueryClient, part: Part): void {
  const waiting = calming.get(part);
  if (waiting !== undefined) {
    waiting.again = true;
    return;
  }
  const state = { again: false };
  calming.set(part, state);
  setTimeout(() => {
    calming.delete(part);
    if (state.again) refresh(client, part);
  }, CALMER[part] ?? CALM);
  // a hidden page asks for what is stale when it is seen again
  void client.invalidateQueries({ queryKey: part.split(" "), refetchType: document.hidden ? "none" : "active" });
}

/** Whether the live events arrive now. */
export function isLive(): boolean {
  return connection === "connected";
}

/** Whether the live events arrive. */
export function useConnection(): Connection {
  return useSyncExternalStore(watch, () => connection);
}

/** The time since which live events arrive, or do not arrive, in milliseconds since 1970. */
export function useConnectionSince(): number {
  return useSyncExternalStore(watch, () => changedAt);
}

/** Call a function with each event of a name while the component is shown. */
export function useLiveEvent(name: string, draw: (payload: Payload) => void): void {
  const latest = useRef(draw);
  useEffect(() => {
    latest.current = draw;
  });
  useEffect(() => {
    const call = (payload: Payload) => latest.current(payload);
    const calls = drawn.get(name) ?? new Set();
    drawn.set(name, calls.add(call));
    return () => {
      calls.delete(call);
    };
  }, [name]);
}

/** Send a subscription, now and after each reconnection, while the component is shown. */
export function useJoin(join: string, leave?: string): void {
  const now = useConnection();
  useEffect(() => {
    if (now !== "connected") return undefined;
    socket?.emit(join);
    return () => {
      if (leave !== undefined) socket?.emit(leave);
    };
  }, [now, join, leave]);
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** The events end. The answers are asked for anew, and from then on repeatedly. */
function lose(client: QueryClient): void {
  if (connection === "lost") return;
  become("lost");
  void client.invalidateQueries();
}

function become(next: Connection): void {
  if (next === connection) return;
  connection = next;
  changedAt = Date.now();
  for (const watcher of watchers) watcher();
}

