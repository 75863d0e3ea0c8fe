// A request as a curl command and as a Python program. Secrets are left out: the key stands as a name of the shell.

/** A request before it is sent. */
export interface Sent {
  method: string;
  url: string;
  headers: Record<string, string>;
  body?: unknown;
  /** A JSON body that is sent as it is written, such as a file. */
  text?: string;
  /** A form with a file. */
  form?: FormData;
}

const SECRET = /^(authorization|x-.*lease.*|x-.*token.*)$/i;

export function curl({ method, url, headers, body }: Sent): string {
  const lines = [`curl -s ${quoted(url)}`];
  const isImplied = method === "GET" || (method === "POST" && body !== undefined);
  if (!isImplied) lines[0] = `curl -s -X ${method} ${quoted(url)}`;
  for (const [name, value] of shown(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

export function python({ method, url, headers, body }: Sent): string {
  const kept = shown(headers).filter(([name]) => name.toLowerCase() !== "content-type");
  const args = [JSON.stringify(url)];
  if (body !== undefined) args.push(`json=${literal(body, 1)}`);
  if (kept.length > 0) args.push(`headers=${literal(Object.fromEntries(kept), 1)}`);
  // httpx.get and httpx.delete take no body
  const isPlain = body === undefined || !["GET", "DELETE"].includes(method);
  if (!isPlain) args.unshift(JSON.stringify(method));
  const call = isPlain ? `httpx.${method.toLowerCase()}` : "httpx.request";
  return `import httpx\n\nanswer = ${call}(\n    ${args.join(",\n    ")},\n)\nprint(answer.json())`;
}

function shown(headers: Record<string, string>): [string, string][] {
  return Object.entries(headers).filter(([name]) => !SECRET.test(name));
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A JSON value as Python. */
function literal(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return enclosed("[", value.map((part) => literal(part, depth + 1)), "]", depth);
  if (typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${literal(part, depth + 1)}`);
  return enclosed("{", fields, "}", depth);
}

/** Parts in brackets: in one line where they fit, else a line each. */
function enclosed(opening: string, parts: string[], closing: string, depth: number): string {
  const line = opening + parts.join(", ") + closing;
  if (line.length < 70 && !line.includes("\n")) return line;
  const inner = "    ".repeat(depth + 1);
  return `${opening}\n${parts.map((part) => `${inner}${part},\n`).join("")}${"    ".repeat(depth)}${closing}`;
}
