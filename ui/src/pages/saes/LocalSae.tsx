// An SAE whose files are on the machine of the service. The files stay where they are.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { register } from "../../api/saes";
import { LocalForm } from "../../parts/LocalForm";
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
    <LocalForm
      path={path}
      onPath={setPath}
      example="/data/saes/layer_3"
      about="A folder, or a .safetensors, .npz, .pt or .pth file. Every byte is read once, to know the SAE again anywhere."
      work={registration}
    />
  );
}
