// An SAE whose files are on the machine of the service. The files stay where they are.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { register } from "../../api/saes";
import { ErrorNotice } from "../../parts/ErrorNotice";
import { notify } from "../../parts/Notices";

export function LocalSae() {
  const client = useQueryClient();
  const [path, setPath] = useState("");
  const registration = useMutation({
    mutationFn: () => register(path.trim()),
    onSuccess: ({ message }) => {
      notify(`The SAE is ${message}.`);
      setPath("");
    },
    onSettled: () => client.invalidateQueries({ queryKey: ["saes"] }),
  });
  return (
    <form
      className="flow"
      onSubmit={(event) => {
        event.preventDefault();
        registration.mutate();
      }}
    >
      <label className="field">
        Folder or file on the machine of the service
        <input value={path} required maxLength={500} spellCheck={false} placeholder="/data/saes/layer_3" onChange={(event) => setPath(event.target.value)} />
      </label>
      <p className="quiet">A folder, or a .safetensors, .npz, .pt or .pth file. Every byte is read once, to know the SAE again anywhere.</p>
      <div className="row">
        <button type="submit" className="primary" disabled={path.trim() === "" || registration.isPending}>
          {registration.isPending ? "Reading" : "Register"}
        </button>
      </div>
      {registration.error !== null && <ErrorNotice error={registration.error} />}
    </form>
  );
}
