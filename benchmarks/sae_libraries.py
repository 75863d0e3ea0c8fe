"""Computes SAEs with the libraries in which people publish them. `benchmarks.sae_parity` compares the results.

The script runs in an environment of its own, `python sae_libraries.py FOLDER`, and imports nothing of ours. FOLDER
holds `jobs.json` and `x.npy` [n, d_in]. For each job the script writes `<number>.npz` with `features` [n, d_sae] and
`x_hat` [n, d_in], or a reason in `reasons.json`.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors import safe_open
from torch import Tensor

Answer = tuple[Tensor, Tensor]
"""Features and reconstruction."""


# ---------------------------------------------------------------- SAELens


def sae_lens(job: dict[str, Any], x: Tensor) -> Answer:
    """Load as `SAE.from_pretrained` does, with the hub's answers taken from the folder."""
    from sae_lens import SAE
    from sae_lens.loading import pretrained_sae_loaders as loaders

    root = Path(job["root"])
    if job.get("make"):
        make(root / job["inside"], **job["make"])

    def download(_: str = "", filename: str = "", subfolder: str = "", **more: Any) -> str:
        path = root / subfolder / filename
        if not path.exists():
            raise EntryNotFoundError(f"{filename} is not there")
        return str(path)

    def shapes(_: str, filename: str) -> dict[str, list[int]]:
        with safe_open(root / filename, framework="pt") as file:
            return {name: file.get_slice(name).get_shape() for name in list(file.keys())}

    loaders.hf_hub_download = lambda repo_id="", filename="", **more: download(
        repo_id, filename, more.get("subfolder") or ""
    )
    loaders.get_safetensors_tensor_shapes = shapes
    if job["loader"].endswith("disk_loader"):
        converter = getattr(loaders, job["loader"])
    else:

        def converter(_: Any, device: str, cfg_overrides: Any = None) -> Any:
            load = getattr(loaders, job["loader"])
            overrides = {"dtype": "float32", **job.get("cfg", {})}
            return load(job["repository"], job["inside"], device, False, overrides)[:2]

    sae = SAE.load_from_disk(root / job["inside"], converter=converter)
    if sae.cfg.normalize_activations == "expected_average_only_in":
        sae.fold_activation_norm_scaling_factor(job["norm_factor"])
    sae.turn_off_forward_pass_hook_z_reshaping()
    features = sae.encode(x)
    return features, sae.decode(features)


def make(path: Path, architecture: str, **fields: Any) -> None:
    """An SAE of random numbers, saved by the library itself as it saves a trained one."""
    from sae_lens.registry import get_sae_training_class

    sae_class, config_class = get_sae_training_class(architecture)
    sae = sae_class(config_class(d_in=16, d_sae=64, dtype="float32", device="cpu", **fields))
    sae.cfg.metadata.hook_name = "blocks.1.hook_resid_post"
    sae.cfg.metadata.model_name = "gemma-2-2b"
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in sae.state_dict().items():
            drawn = torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
            positive = "threshold" in name
            tensor.copy_(drawn.abs().log() if name == "log_threshold" else drawn / 4)
            if positive and name != "log_threshold":
                tensor.abs_()
    sae.save_inference_model(path)


# ---------------------------------------------------------------- dictionary_learning


def dictionary_learning(job: dict[str, Any], x: Tensor) -> Answer:
    package("dictionary_learning")
    package("dictionary_learning.trainers")
    module = import_module(f"dictionary_learning.{job['module']}")
    path = Path(job["root"]) / job["inside"] / "ae.pt"
    dictionary = getattr(module, job["class"]).from_pretrained(path, **job.get("cfg", {}))
    features = dictionary.encode(x)
    return features, dictionary.decode(features)


# ---------------------------------------------------------------- sparsify


def sparsify(job: dict[str, Any], x: Tensor) -> Answer:
    package("sparsify")
    coder = import_module("sparsify.sparse_coder").SparseCoder
    sae = coder.load_from_disk(Path(job["root"]) / job["inside"])
    found = sae.encode(x)
    features = torch.zeros(x.shape[0], sae.num_latents)
    features.scatter_(1, found.top_indices, found.top_acts)
    return features, sae.decode(found.top_acts, found.top_indices)


def package(name: str) -> None:
    """A package without what its `__init__` imports: training wants far more than the maths does."""
    if name not in sys.modules:
        empty = types.ModuleType(name)
        spec = find_spec(name)
        assert spec is not None
        empty.__path__ = list(spec.submodule_search_locations or [])
        sys.modules[name] = empty


LIBRARIES: dict[str, Callable[[dict[str, Any], Tensor], Answer]] = {
    "sae-lens": sae_lens,
    "dictionary-learning": dictionary_learning,
    "eai-sparsify": sparsify,
}


def answered(work: Callable[[], Answer], target: Path) -> str | None:
    """Keep what the library computes; the reason where it cannot."""
    try:
        with torch.no_grad():
            features, x_hat = work()
    except Exception as error:
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)[:300]}"
    np.savez(target, features=features.numpy(), x_hat=x_hat.numpy())
    return None


def main() -> None:
    folder = Path(sys.argv[1])
    x = torch.from_numpy(np.load(folder / "x.npy"))
    reasons = {}
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
        work = partial(LIBRARIES[job["library"]], job, x.clone())
        reason = answered(work, folder / f"{number}.npz")
        if reason is not None:
            reasons[number] = reason
    (folder / "reasons.json").write_text(json.dumps(reasons))


if __name__ == "__main__":
    main()
