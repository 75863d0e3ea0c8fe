import { QueryClient } from "@tanstack/react-query";
import { expect, it } from "vitest";
import { service, type Request } from "../test/service";
import { circuits, clusters, profiles } from "./documents";

const STORED = Array.from({ length: 450 }, (_, number) => ({ id: `id_${number}` }));

it.each([
  ["profiles", profiles],
  ["clusters", clusters],
  ["circuits", circuits],
] as const)("reads every page of the %s", async (noun, list) => {
  const sent = service({
    [`GET /api/${noun}`]: ({ query }: Request) => {
      const first = Number(query.get("offset"));
      return { [noun]: STORED.slice(first, first + Number(query.get("limit"))), total: STORED.length };
    },
  });
  const read: unknown = await new QueryClient().fetchQuery(list as typeof profiles);
  expect(read).toMatchObject({ [noun]: STORED, total: 450 });
  expect(sent.length).toBe(3);
});
