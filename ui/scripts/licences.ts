// Writes licences.txt beside the built page: the packages whose code the page has, each with the text of its licence.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

export const FILE = "licences.txt";
const FOLDER = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENCE = /^(licen[cs]e|copying|notice)(\.|$)/i;
const HEAD =
  "steerserve has the licence Apache-2.0. Its web page also has code of the packages below, each under its own licence.\n";

export function licences(): Plugin {
  return {
    name: "licences",
    apply: "build",
    generateBundle(_, bundle) {
      const chunks = Object.values(bundle).filter((part) => part.type === "chunk");
      const folders = new Set(chunks.flatMap(({ moduleIds }) => moduleIds.map((id) => FOLDER.exec(id)?.[1])));
      const parts = [...folders].filter((folder) => folder !== undefined).map(noticeOf);
      this.emitFile({ type: "asset", fileName: FILE, source: [HEAD, ...parts.sort()].join("\n") });
    },
  };
}

function noticeOf(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Record<string, string>;
  const files = readdirSync(folder).filter((file) => LICENCE.test(file));
  if (files.length === 0) throw new Error(`${name} has no text of its licence (${license})`);
  const texts = files.sort().map((file) => readFileSync(join(folder, file), "utf8").trim());
  const title = `${name} ${version}, ${license}`;
  return [title, "=".repeat(title.length), "", ...texts, ""].join("\n");
}
