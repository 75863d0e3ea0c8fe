// The request that an action sends, as commands to copy. It teaches the API.
import { useState } from "react";

import { curl, python, type Sent } from "../rules/snippet";
import { Copy } from "./Copy";
import { Segmented } from "./Segmented";

const FORMS = [
  { value: "curl", label: "curl" },
  { value: "python", label: "Python" },
] as const;

export function CopyCode({ sent, title = "As curl or Python" }: { sent: Sent; title?: string }) {
  const [form, setForm] = useState<"curl" | "python">("curl");
  const code = form === "curl" ? curl(sent) : python(sent);
  return (
    <details className="copy-code">
      <summary>{title}</summary>
      <div className="row spread">
        <Segmented label="Language" options={FORMS} value={form} onChange={setForm} />
        <Copy text={code} label="Copy the code" />
      </div>
      <pre tabIndex={0} role="group" aria-label={form === "curl" ? "curl command" : "Python program"}>
        <code>{code}</code>
      </pre>
    </details>
  );
}
