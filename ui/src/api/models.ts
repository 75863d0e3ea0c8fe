// The questions and the actions of the page Models.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Data } from "./client";
import type { Models } from "./queries";
import type { ModelAction } from "../rules/residency";
import { given } from "../rules/given";
import type { Sent } from "../rules/snippet";

export type Model = Models["models"][number];
export type ReplicaSet = Data<"/api/models/{model_id}/replicas">;
export type Replica = ReplicaSet["replicas"][number];
/** Another number of replicas, or a change of one replica. */
export type ReplicaChange = { count: number } | { name: string; action: "drain" | "replace" };
export type Offered = Data<"/api/models/preview", "post">;
export type Precision = "FP16" | "Q8" | "Q4" | "Q2";
/** Takes a token out of its field. A token is in no key and no variable, because those are kept. */
export type TakeToken = () => string | undefined;

export interface NewHubModel {
  repo_id: string;
  revision?: string | undefined;
  quantization?: Precision | undefined;
  gguf_label?: string | undefined;
  custom_name?: string | undefined;
  trust_remote_code?: boolean | undefined;
}
export interface NewLocalModel {
  local_path: string;
  quantization: Precision;
  gguf_label?: string | undefined;
  custom_name?: string | undefined;
}

/** What a repository offers. The hub is asked once, and again only when a person asks again. */
export function preview(repo: string, revision: string, take: TakeToken) {
  const named = revision === "" ? {} : { revision };
  return queryOptions({
    queryKey: ["preview", "models", repo, revision] as const,
    queryFn: ({ signal }) =>
      request("post", "/api/models/preview", { body: { repo_id: repo, ...named, ...token(take) }, signal }),
    enabled: repo !== "",
    staleTime: "static",
    retry: false,
    refetchOnMount: false,
  });
}

export function download(wanted: NewHubModel, take: TakeToken): Promise<Model> {
  return request("post", "/api/models", { body: { ...hubBody(wanted), ...token(take) } });
}

/** The request of a download, without a token, for people who want to copy it. */
export function describedDownload(wanted: NewHubModel): Sent {
  return described("post", "/api/models", { body: hubBody(wanted) });
}

/** Where the values of the loaded model can be read and written. */
export function sitesOf(id: number | undefined) {
  return queryOptions({
    queryKey: ["models", id ?? null, "sites"] as const,
    queryFn: ({ signal }) => request("get", "/api/models/{model_id}/sites", { path: { model_id: id ?? 0 }, signal }),
    enabled: id !== undefined,
    staleTime: Infinity,
  });
}

export function register(wanted: NewLocalModel): Promise<Model> {
  return request("post", "/api/models", { body: given({ source: "local" as const, ...wanted }) });
}

export function act(action: ModelAction, model: Model, gpu: string, take: TakeToken): Promise<unknown> {
  const path = { model_id: model.id };
  if (action === "cancel") return request("post", "/api/models/{model_id}/cancel", { path });
  if (action === "unload") return request("post", "/api/models/{model_id}/unload", { path });
  if (action === "resume") return download(again(model), take);
  return request("post", "/api/models/{model_id}/load", { path, body: { gpu } });
}

export function setLock(model: Model): Promise<Model> {
  const path = { model_id: model.id };
  return model.locked
    ? request("post", "/api/models/{model_id}/unlock", { path })
    : request("post", "/api/models/{model_id}/lock", { path });
}

export function changeReplicas(id: number, change: ReplicaChange): Promise<ReplicaSet> {
  if ("count" in change) {
    return request("put", "/api/models/{model_id}/replicas", { path: { model_id: id }, body: { count: change.count } });
  }
  const path = { model_id: id, name: change.name };
  return change.action === "drain"
    ? request("post", "/api/models/{model_id}/replicas/{name}/drain", { path })
    : request("post", "/api/models/{model_id}/replicas/{name}/replace", { path });
}

export function remove(model: Model): Promise<unknown> {
  return request("delete", "/api/models/{model_id}", { path: { model_id: model.id } });
}

/** The request that goes on with the download of a record. */
function again(model: Model): NewHubModel {
  return {
    repo_id: model.repo_id ?? "",
    revision: model.revision ?? undefined,
    gguf_label: model.gguf_label ?? undefined,
    quantization: model.gguf_label === null ? (model.quantization as Precision) : undefined,
    trust_remote_code: model.trust_remote_code,
  };
}

function hubBody(wanted: NewHubModel) {
  return given({ source: "huggingface" as const, ...wanted });
}

function token(take: TakeToken): { hub_token?: string } {
  const value = take();
  return value === undefined ? {} : { hub_token: value };
}
