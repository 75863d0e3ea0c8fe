// The questions and the actions of the page SAEs.
import { queryOptions } from "@tanstack/react-query";
import { described, request, type Body, type Data } from "./client";
import { BUSY_POLL, unlessLive } from "./queries";
import type { TakeToken } from "./models";
import type { Member } from "../rules/members";
import type { Sent } from "../rules/snippet";

export type Sae = Data<"/api/saes">["saes"][number];
export type Attachments = Data<"/api/saes/attachments">;
export type Attached = Attachments["entries"][number];
export type OfferedSaes = Data<"/api/saes/preview", "post">;
export type OfferedSae = OfferedSaes["files"][number];
export type Verdict = Data<"/api/saes/{sae_id}/compatibility">;
export type Overrides = NonNullable<Body<"/api/saes/{sae_id}/attach">["overrides"]>;
export type Dtype = NonNullable<Body<"/api/saes/{sae_id}/attach">["dtype"]>;

export const saes = queryOptions({
  queryKey: ["saes", "list"] as const,
  queryFn: ({ signal }) => request("get", "/api/saes", { signal }),
  refetchInterval: (query) => {
    const isBusy = query.state.data?.saes.some(({ status }) => status === "downloading") ?? false;
    return isBusy ? BUSY_POLL : unlessLive(query);
  },
});

/** Whether an SAE fits the loaded model at a layer. Nothing is attached. */
export function compatibility(sae_id: string, layer: number, modelId: number | null) {
  return queryOptions({
    queryKey: ["saes", "compatibility", sae_id, layer, modelId] as const,
    queryFn: ({ signal }) =>
      request("get", "/api/saes/{sae_id}/compatibility", { path: { sae_id }, query: { layer }, signal }),
    enabled: modelId !== null,
    retry: false,
  });
}

/** The SAEs of a repository. The hub is asked once, and again only when a person asks again. */
export function preview(repo: string, revision: string, take: TakeToken) {
  const named = revision === "" ? {} : { revision };
  return queryOptions({
    queryKey: ["preview", "saes", repo, revision] as const,
    queryFn: ({ signal }) =>
      request("post", "/api/saes/preview", { body: { repository_id: repo, ...named, ...token(take) }, signal }),
    enabled: repo !== "",
    staleTime: "static",
    retry: false,
    refetchOnMount: false,
  });
}

export interface SaePlace {
  repository_id: string;
  revision?: string;
  /** Left out for all SAEs of the repository. */
  file_path?: string;
}

export function download(place: SaePlace, take: TakeToken) {
  return request("post", "/api/saes/download", { body: { ...place, ...token(take) } });
}

export function register(local_path: string) {
  return request("post", "/api/saes/download", { body: { local_path } });
}

export function cancel(sae_id: string) {
  return request("post", "/api/saes/{sae_id}/cancel", { path: { sae_id } });
}

export function remove(sae_id: string) {
  return request("delete", "/api/saes/{sae_id}", { path: { sae_id } });
}

export function detach(sae_id: string) {
  return request("post", "/api/saes/{sae_id}/detach", { path: { sae_id } });
}

/** How SAEs are to be attached: beside the attached ones, or one in their place. */
export interface Attaching {
  members: readonly Member[];
  isReplacing: boolean;
  dtype: Dtype | null;
  overrides: Overrides;
}

export function attach(wanted: Attaching): Promise<{ warnings: string[] }> {
  const single = singleOf(wanted);
  if (single !== null) return request("post", "/api/saes/{sae_id}/attach", single);
  return request("post", "/api/saes/attach-set", { body: setOf(wanted) }).then(({ entries }) => ({
    warnings: entries.flatMap((entry) => entry.warnings),
  }));
}

export function describedAttach(wanted: Attaching): Sent {
  const single = singleOf(wanted);
  if (single !== null) return described("post", "/api/saes/{sae_id}/attach", single);
  return described("post", "/api/saes/attach-set", { body: setOf(wanted) });
}

function singleOf({ members, isReplacing, dtype, overrides }: Attaching) {
  const [member] = members;
  if (!isReplacing || member === undefined || members.length > 1) return null;
  const replaced = Object.keys(overrides).length > 0 ? { overrides } : {};
  const body = { layer: member.layer, check: true, ...replaced, ...(dtype === null ? {} : { dtype }) };
  return { path: { sae_id: member.sae_id }, body };
}

function setOf({ members, dtype }: Attaching) {
  return { saes: [...members], ...(dtype === null ? {} : { dtype }) };
}

function token(take: TakeToken): { hub_token?: string } {
  const value = take();
  return value === undefined ? {} : { hub_token: value };
}
