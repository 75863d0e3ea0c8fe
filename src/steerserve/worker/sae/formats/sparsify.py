"""EleutherAI's sparsify: `cfg.json` beside `sae.safetensors`. The folder's name is the module whose output the SAE
reads.

b_dec is always subtracted from the input, as in the library's own encoder.
"""

from __future__ import annotations

import re

from steerserve.errors import Refusal
from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.files import read_json
from steerserve.worker.sae.formats.description import TRANSCODER, Description, parts_by_name
from steerserve.worker.sae.formats.sources import Fields, SourceFiles

NAMES = {
    "W_enc": ("encoder.weight", "W_enc"),
    "b_enc": ("encoder.bias", "b_enc"),
    "W_dec": ("W_dec", "decoder.weight"),
    "b_dec": ("b_dec", "decoder.bias"),
}


def describe(files: SourceFiles) -> Description | None:
    config = files.config("cfg.json")
    if config is None or not config.has("k") or not config.has("expansion_factor", "num_latents"):
        return None
    tensors = files.weights("sae.safetensors")
    if tensors is None:
        return None
    name = re.sub(r"/sae\.safetensors$", "", files.name, flags=re.IGNORECASE)
    hook = name.rpartition("/")[2]
    model = _model(files)
    site, layer = sae_sites.locate(hook, model)
    named = config.text("activation") or "topk"
    activation = named if named in ("topk", "groupmax") else None
    k = config.index("k") or None
    is_signed = bool(config.flag("signed"))
    is_transcoder = bool(config.flag("transcode")) or bool(config.flag("skip_connection"))
    return Description(
        format="sparsify",
        tensors=tensors,
        parts=parts_by_name(tensors, NAMES),
        architecture=named,
        activation="abstopk" if is_signed and activation == "topk" else activation,
        k=k,
        subtract_b_dec=True,
        transposed=frozenset({"W_enc"}) if "encoder.weight" in tensors.infos else frozenset(),
        hook_name=hook or None,
        site=site,
        layer=layer if layer is not None else files.layer,
        model_name=model,
        l0=float(k) if k else None,
        reason=TRANSCODER if is_transcoder or "W_skip" in tensors.infos else None,
        stated_sizes=config.sizes("d_in", "num_latents"),
        warnings=() if activation else (f"the activation {named!r} is not known",),
    )


def _model(files: SourceFiles) -> str | None:
    """The model, which the configuration in the parent folder names. A parent configuration that cannot be read is
    ignored."""
    path = files.folder.parent / "config.json"
    try:
        return Fields(path.name, read_json(path)).text("model") if path.is_file() else None
    except Refusal:
        return None
