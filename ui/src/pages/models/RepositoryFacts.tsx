import type { Offered } from "../../api/models";
import { Facts } from "../../parts/Facts";
import { count } from "../../rules/bytes";

export function RepositoryFacts({ offered }: { offered: Offered }) {
  return (
    <div className="flow">
      <h3 className="row">
        {offered.repo_id}
        {offered.is_gated && <span className="tag">gated</span>}
        {offered.requires_trust_remote_code && <span className="tag">own code</span>}
      </h3>
      <Facts
        facts={[
          ["parameters", offered.params],
          ["architecture", offered.architecture ?? offered.gguf_architecture],
          ["license", offered.license],
          ["task", offered.pipeline_tag],
          ["downloads", offered.downloads === null ? null : count(offered.downloads)],
          ["likes", offered.likes === null ? null : count(offered.likes)],
          ["commit", <code key="commit">{offered.revision.slice(0, 8)}</code>, offered.revision],
        ]}
      />
    </div>
  );
}
