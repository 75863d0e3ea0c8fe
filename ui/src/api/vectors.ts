// Vectors: stored directions of a model's activations, and their files.
import { queryOptions } from "@tanstack/react-query";
import type { Imported } from "../rules/imported";
import { described, request, send, type Body, type Data } from "./client";
import { everyPage, exported } from "./documents";
import { POLL } from "./queries";

export type Vector = Data<"/api/vectors">["vectors"][number];
export type VectorNeighbours = Data<"/api/vectors/{vector_id}/neighbours">;

export const vectors = queryOptions({
  queryKey: ["vectors", "list"] as const,
  queryFn: async ({ signal }) => {
    const { first, rows } = await everyPage(
      (query) => request("get", "/api/vectors", { signal, query }),
      (page) => page.vectors,
    );
    return { ...first, vectors: rows };
  },
  // no event tells of vectors
  refetchInterval: POLL,
});

/** The features and the other vectors with the largest cosines, of all layers of the vector or of one. */
export const neighbours = (vector_id: string, layer: number | null) =>
  queryOptions({
    queryKey: ["vectors", "neighbours", vector_id, layer] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/vectors/{vector_id}/neighbours", {
        signal,
        path: { vector_id },
        query: { limit: 10, examples: true, ...(layer === null ? {} : { layer }) },
      }),
    staleTime: POLL,
    retry: false,
  });

/** The tokens that the directions of a vector at one layer promote and suppress in the loaded model. */
export const vectorTokens = (vector_id: string, layer: number) =>
  queryOptions({
    queryKey: ["vectors", "tokens", vector_id, layer] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/vectors/{vector_id}/tokens", { signal, path: { vector_id }, query: { layer } }),
    staleTime: POLL,
    retry: false,
  });

export type MeasureBody = Body<"/api/vectors/{vector_id}/measure">;

/** Begin a measurement of what a vector does. It goes on as a job, also where the page is left. */
export async function measureVector(vector_id: string, body: MeasureBody): Promise<string> {
  return (await request("post", "/api/vectors/{vector_id}/measure", { path: { vector_id }, body })).job.id;
}

export function describedMeasurement(vector_id: string, body: MeasureBody) {
  return described("post", "/api/vectors/{vector_id}/measure", { path: { vector_id }, body, query: { wait: true } });
}

export const CONVENTIONS = ["resid_post", "gguf", "resid_pre", "hf_hidden_states"] as const;

/** What a file does not say by itself. Empty fields are left to the file. */
export interface Reading {
  name: string;
  layer: string;
  layer_convention: string;
  layer_offset: string;
  operation: string;
  /** The JSON beside the file of a refusal direction, or of the weights of a probe. */
  metadata: File | null;
}

/** A file with what it does not say by itself. */
export function formOf(file: File, reading: Reading): FormData {
  const form = new FormData();
  for (const [field, value] of Object.entries({ ...reading, name: reading.name.trim() || stem(file.name) })) {
    if (value !== null && value !== "") form.set(field, value);
  }
  form.set("file", file);
  return form;
}

export async function importVector(file: File, reading: Reading): Promise<Imported[]> {
  const { id, name, warnings } = await request("post", "/api/vectors", { form: formOf(file, reading) });
  return [{ id, name, warnings, error: null }];
}

/** The name of a file without its endings. */
function stem(name: string): string {
  return name.replace(/(\.vector)?\.[A-Za-z0-9]+$/, "").slice(0, 100) || name;
}

export const FORMATS = ["gguf", "safetensors", "json"] as const;
export type Format = (typeof FORMATS)[number];

/** A vector as a file of a format. */
export async function exportVector(vector_id: string, format: Format): Promise<string | Blob> {
  const sent = described("get", "/api/vectors/{vector_id}/export", { path: { vector_id }, query: { format } });
  return format === "json" ? exported(sent) : (await send(sent)).blob();
}
