// A model whose files are on the machine of the service. The files stay where they are.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { register, type Precision } from "../../api/models";
import { LocalForm } from "../../parts/LocalForm";
import { notify } from "../../parts/Notices";
import { Segmented } from "../../parts/Segmented";

const PRECISIONS = (["FP16", "Q8", "Q4"] as const).map((value) => ({ value, label: value }));

export function LocalModel() {
  const client = useQueryClient();
  const [path, setPath] = useState("");
  const [name, setName] = useState("");
  const [label, setLabel] = useState("");
  const [precision, setPrecision] = useState<Precision>("FP16");
  const registration = useMutation({
    mutationFn: () =>
      register({
        local_path: path.trim(),
        quantization: precision,
        custom_name: name.trim() || undefined,
        gguf_label: label.trim() || undefined,
      }),
    onSuccess: (model) => {
      notify(`${model.name} is registered.`);
      setPath("");
      setName("");
      setLabel("");
    },
    onSettled: () => client.invalidateQueries({ queryKey: ["models"] }),
  });
  return (
    <LocalForm
      path={path}
      onPath={setPath}
      example="/models/mine"
      about="A checkpoint folder, a .gguf file, or a folder with GGUF models. The files stay where they are."
      work={registration}
    >
      <div className="fields">
        <label className="field">
          Name in /v1, if another one is wanted
          <input value={name} maxLength={100} spellCheck={false} onChange={(event) => setName(event.target.value)} />
        </label>
        <label className="field">
          GGUF label, in a folder with several
          <input value={label} maxLength={64} spellCheck={false} placeholder="Q4_K_M" onChange={(event) => setLabel(event.target.value)} />
        </label>
        <div className="field">
          Precision of a checkpoint
          <Segmented label="Precision of a checkpoint" options={PRECISIONS} value={precision} onChange={setPrecision} />
        </div>
      </div>
    </LocalForm>
  );
}
