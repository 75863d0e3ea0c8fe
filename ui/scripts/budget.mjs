// Fails the build where the first page is larger than its budget: all that index.html and the page of the start load.
import { readFileSync, rmSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const OUT = pathToFileURL(`${process.argv[2] ?? "../src/steerserve/webui"}/`);
const BUDGET = 200_000;

const manifest = JSON.parse(readFileSync(new URL("manifest.json", OUT), "utf8"));
const files = new Set();

function add(name, dynamic) {
  const chunk = manifest[name];
  files.add(chunk.file);
  for (const css of chunk.css ?? []) files.add(css);
  for (const needed of chunk.imports ?? []) if (!files.has(manifest[needed].file)) add(needed, []);
  for (const page of dynamic) add(page, []);
}

const entry = Object.keys(manifest).find((name) => manifest[name].isEntry);
const sizes = (pages) => {
  files.clear();
  add(entry, pages);
  return [...files].reduce((sum, file) => sum + gzipSync(readFileSync(new URL(file, OUT)), { level: 9 }).length, 0);
};
const pages = (manifest[entry].dynamicImports ?? []).filter((name) => name.startsWith("src/pages/"));
const first = Math.max(sizes([]), ...pages.slice(0, 1).map((page) => sizes([page])));
rmSync(new URL("manifest.json", OUT));
console.log(`first page: ${(first / 1000).toFixed(1)} kB gzipped of ${BUDGET / 1000} kB`);
if (first > BUDGET) {
  console.error("The first page is larger than its budget. Load what it does not need at once lazily.");
  process.exit(1);
}
