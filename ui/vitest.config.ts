import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    restoreMocks: true,
    testTimeout: 20_000,
    unstubGlobals: true,
    maxWorkers: 2,
    pool: "threads",
    projects: [
      {
        extends: true,
        test: { name: "rules", environment: "node", isolate: false, include: ["src/rules/**/*.test.ts"] },
      },
      {
        extends: true,
        test: {
          name: "page",
          isolate: false,
          environment: "jsdom",
          setupFiles: ["src/test/setup.ts"],
          include: ["src/**/*.test.{ts,tsx}"],
          exclude: ["src/rules/**"],
        },
      },
    ],
  },
});
