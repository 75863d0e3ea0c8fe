// How a client's script tells the runner what it did: its versions, then one line of JSON a call.

import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";

export const baseURL = process.env.SERVICE_BASE_URL;
export const model = process.env.SERVICE_MODEL;
export const story = "Tell me a story.";
export { assert };

const line = (told) => console.log(JSON.stringify(told));

export function versions(...names) {
  const of = (name) =>
    JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
  line({ versions: Object.fromEntries(names.map((name) => [name, of(name)])) });
}

// The call returns what the script asserts.
export async function works(call, make) {
  let problem = null;
  try {
    await make();
  } catch (error) {
    problem = error.stack;
  }
  tell({ call, problem });
}

// The call throws, and its error says so; `instead` is what to use in its place.
export async function refused(call, { says, instead }, make) {
  let problem = "it was not refused";
  try {
    await make();
  } catch (error) {
    problem = error.message.includes(says) ? null : `it was refused otherwise: ${error.message}`;
  }
  tell({ call, says, instead, problem });
}

function tell(told) {
  line(told);
  if (told.problem !== null) process.exitCode = 1;
}
