// A repository of the hub: what it offers and whether it fits, before anything is downloaded.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { describedDownload, download, preview, type Model, type NewHubModel } from "../../api/models";
import type { Cards } from "../../api/queries";
import { CopyCode } from "../../parts/CopyCode";
import { notify } from "../../parts/Notices";
import { RepositoryForm, type Place } from "../../parts/RepositoryForm";
import { useToken } from "../../parts/TokenField";
import { useLink } from "../../parts/useLink";
import { needsToken } from "../../rules/errors";
import { places } from "../../rules/fit";
import { text } from "../../rules/link";
import { Offers } from "./Offers";
import { RepositoryFacts } from "./RepositoryFacts";

const LINK = { repo: text(), revision: text() };

export function HubModel({ memory, loaded }: { memory: Cards | undefined; loaded: Model | undefined }) {
  const client = useQueryClient();
  const [link, change] = useLink(LINK);
  const [name, setName] = useState("");
  const [isTrusted, setTrusted] = useState(false);
  const token = useToken(link.repo);
  // the hub is asked about the repository of a link when a person asks for it
  const [asked, setAsked] = useState<Place | null>(null);
  const isAsked = asked?.repo === link.repo && asked.revision === link.revision;
  const shown = useQuery({ ...preview(link.repo, link.revision, token.take), enabled: isAsked });
  const offered = shown.data;
  const begin = useMutation({
    mutationFn: (wanted: NewHubModel) => download(wanted, token.take),
    onSuccess: (model) => notify(`The download of ${model.name} has begun.`),
    onSettled: () => client.invalidateQueries({ queryKey: ["models"] }),
  });
  const wanted = (part: Partial<NewHubModel>): NewHubModel => ({
    repo_id: link.repo,
    revision: link.revision || undefined,
    custom_name: name.trim() || undefined,
    trust_remote_code: isTrusted || undefined,
    ...part,
  });
  return (
    <div className="flow">
      <RepositoryForm
        place={link}
        example="Qwen/Qwen2.5-0.5B-Instruct"
        shown={shown}
        begin={begin}
        token={token.field}
        tokenWhy={whyToken(offered?.is_gated === true && !token.isHeld, shown.error ?? begin.error)}
        onPlace={(next) => {
          setAsked(next);
          change(next, { push: true });
        }}
      />
      {offered !== undefined && (
        <div className="flow offered">
          <RepositoryFacts offered={offered} />
          <Offers
            offered={offered}
            places={memory === undefined ? [] : places(memory, loaded?.memory_by_device_mb)}
            isBusy={begin.isPending}
            onDownload={(part) => begin.mutate(wanted(part))}
          />
          <div className="fields">
            <label className="field">
              Name in /v1, if another one is wanted
              <input
                value={name}
                maxLength={100}
                spellCheck={false}
                placeholder={offered.name}
                onChange={(event) => setName(event.target.value)}
              />
            </label>
            {offered.requires_trust_remote_code && (
              <label className="row check-box">
                <input type="checkbox" checked={isTrusted} onChange={(event) => setTrusted(event.target.checked)} />
                Run the repository’s own Python code on the machine of the service. Only if you trust it.
              </label>
            )}
          </div>
          <CopyCode title="The download as curl or Python" sent={describedDownload(wanted(offered.estimated_sizes === null ? {} : { quantization: "FP16" }))} />
        </div>
      )}
    </div>
  );
}

function whyToken(isLacking: boolean, error: unknown): string | null {
  if (isLacking) return "The repository is gated: the download needs a token.";
  return needsToken(error) ? "The hub asks for a token." : null;
}
