// The state of a view as the query of its link, and back. A link that was shortened or written by hand still opens: a
// part that cannot be read has its default, and the page says so.

export interface Field<T> {
  fallback: T;
  /** What a text must be so that it can be read, in words. */
  expected: string;
  read(text: string): T | undefined;
  write(value: T): string;
}
export type Fields = Record<string, Field<never>>;
export type State<F> = { [K in keyof F]: F[K] extends Field<infer T> ? T : never };

export function text(fallback = ""): Field<string> {
  return { fallback, expected: "a text", read: (written) => written, write: (value) => value };
}

export function number(fallback: number, least = -Infinity, most = Infinity): Field<number> {
  return {
    fallback,
    expected: `a number from ${least} to ${most}`,
    read(written) {
      const value = Number(written);
      return written.trim() !== "" && value >= least && value <= most ? value : undefined;
    },
    write: String,
  };
}

export function flag(fallback = false): Field<boolean> {
  return {
    fallback,
    expected: "1 or 0",
    read: (written) => ({ "1": true, "0": false })[written],
    write: (value) => (value ? "1" : "0"),
  };
}

export function choice<const T extends string>(values: readonly [T, ...T[]]): Field<T> {
  return {
    fallback: values[0],
    expected: `one of ${values.join(", ")}`,
    read: (written) => values.find((value) => value === written),
    write: (value) => value,
  };
}

/** A value of any form, as JSON. `is` says whether what was read has the form, and `expected` names the form. */
export function json<T>(fallback: T, expected: string, is: (value: unknown) => value is T): Field<T> {
  return {
    fallback,
    expected,
    read(written) {
      try {
        const value: unknown = JSON.parse(written);
        return is(value) ? value : undefined;
      } catch {
        return undefined;
      }
    },
    write: (value) => JSON.stringify(value),
  };
}

/** The state in a query. */
export function read<F extends object>(query: URLSearchParams, fields: F): State<F> {
  const entries = Object.entries(fields as Record<string, Field<unknown>>).map(([name, field]) => {
    const written = query.get(name);
    const value = written === null ? undefined : field.read(written);
    return [name, value === undefined ? field.fallback : value] as const;
  });
  return Object.fromEntries(entries) as State<F>;
}

/** The parts of a query that cannot be read, in words. Each has its default in their place. */
export function faults(query: URLSearchParams, fields: object): string[] {
  return Object.entries(fields as Record<string, Field<unknown>>).flatMap(([name, field]) => {
    const written = query.get(name);
    return written === null || field.read(written) !== undefined ? [] : [`${name} must be ${field.expected}`];
  });
}

/** The query with parts of the state changed. A part with its default is left out, so that links stay short. */
export function written<F extends object>(
  query: URLSearchParams,
  fields: F,
  changed: Partial<State<F>>,
): URLSearchParams {
  const result = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changed)) {
    const field = (fields as Record<string, Field<unknown>>)[name];
    if (field === undefined || value === undefined) continue;
    const text = field.write(value);
    if (text === field.write(field.fallback)) result.delete(name);
    else result.set(name, text);
  }
  return result;
}
