// Times as text: how long ago, how long still, at what time of the day.
import { DASH, isMeasured } from "./bytes";

/** A span of time in its two largest units: `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`. */
export function span(seconds: number | null | undefined): string {
  if (!isMeasured(seconds)) return DASH;
  const whole = Math.max(0, Math.round(seconds));
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), "d"],
    [Math.floor((whole % 86_400) / 3_600), "h"],
    [Math.floor((whole % 3_600) / 60), "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

/** A duration in milliseconds: `0.8 ms`, `42 ms`, `1.25 s`. */
export function milliseconds(value: number | null | undefined): string {
  if (!isMeasured(value)) return DASH;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

/** How long ago something was: `just now`, `42 s ago`, `3 min ago`. */
export function ago(then: string | number | Date, now: number): string {
  const seconds = secondsSince(then, now);
  if (!isMeasured(seconds)) return DASH;
  return seconds < 2 ? "just now" : `${span(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

/** The seconds since a moment. A moment in the future, by a clock that runs ahead, is now. */
export function secondsSince(then: string | number | Date, now: number): number {
  return Math.max(0, (now - new Date(then).getTime()) / 1000);
}

/** The time of the day of a moment, with the date where it is another day: `14:03:22`, `Nov 21, 14:03`. */
export function clock(then: string | number | Date, now: number): string {
  const moment = new Date(then);
  if (Number.isNaN(moment.getTime())) return DASH;
  const isToday = moment.toDateString() === new Date(now).toDateString();
  const hours: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return isToday
    ? moment.toLocaleTimeString("en-US", { ...hours, second: "2-digit" })
    : moment.toLocaleString("en-US", { ...hours, month: "short", day: "numeric" });
}
