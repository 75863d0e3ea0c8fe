// A moment in words that follow the clock. Only these words are drawn again, and only when they change.
import { ago, clock } from "../rules/age";
import { useNow } from "./useNow";

type Instant = string | number | Date;

/** How long ago a moment was. */
export function Ago({ at }: { at: Instant }) {
  return useNow((now) => ago(at, now));
}

/** The time of the day of a moment, with the date where it is another day. */
export function Clock({ at }: { at: Instant }) {
  return useNow((now) => clock(at, now));
}
