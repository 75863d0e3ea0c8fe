// The build of the page and its development server.
import type { ClientRequest, IncomingMessage } from "node:http";
import react from "@vitejs/plugin-react";
import { defineConfig, type ProxyOptions } from "vite";
import { licences } from "./scripts/licences.ts";

const SERVICE = process.env["STEERSERVE_URL"] ?? "http://127.0.0.1:8000";
const PATHS = ["/api", "/v1", "/socket.io", "/docs", "/openapi.json"];

/** How the development server hands requests on. The service compares Origin with Host, so both become its own. */
const HANDED_ON: ProxyOptions = {
  target: SERVICE,
  changeOrigin: true,
  ws: true,
  configure(proxy) {
    for (const event of ["proxyReq", "proxyReqWs"] as const) {
      proxy.on(event, (outgoing: ClientRequest, request: IncomingMessage) => {
        const isOwn = request.headers.origin === `http://${request.headers.host}`;
        if (isOwn) outgoing.setHeader("origin", SERVICE);
      });
    }
  },
};

export default defineConfig(({ command }) => ({
  // relative addresses let the page work behind any path prefix
  base: command === "serve" ? "/ui/" : "./",
  plugins: [react(), licences()],
  build: {
    outDir: "../src/steerserve/webui",
    emptyOutDir: true,
    target: ["chrome123", "firefox128", "safari17.5"],
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    manifest: "manifest.json",
    reportCompressedSize: false,
  },
  server: {
    port: 5173,
    strictPort: true,
    proxy: Object.fromEntries(PATHS.map((path) => [path, HANDED_ON])),
  },
}));
