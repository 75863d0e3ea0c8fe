"""The self-check of an attached SAE: does it reconstruct this model's activations the way its claims say?

A short text is run once, without steering; the beginning-of-sequence position is left out, because SAEs are not
trained on it. It warns, it never refuses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steerserve.engine.worker.checkpoint import Checkpoint
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.engine.worker.sae.sites import Site

TEXT = (
    "One morning Anna walked down to the harbour with her brother. The boats were coming home, and the fishermen "
    'carried baskets up the stone steps. "Did you sleep well?" she asked. He laughed and said that the wind had '
    "kept him awake. In the kitchen their mother was making soup, and the whole house smelled of onions and bread. "
    "After lunch they read a book about stars, wrote two letters, and played outside until it was dark."
)
L0_FACTOR = 3.0
FVU_MAXIMUM = 0.7


@torch.inference_mode()
def run(model: Checkpoint, sae: Sae, site: Site) -> dict[str, float]:
    """L0, fraction of variance unexplained, median residual norm, and the decoder rows' norms.

    FVU = ||x - x_hat||^2 / ||x - mean(x)||^2 over the positions of the text.
    """
    kept: list[Tensor] = []

    def keep(hidden: Tensor) -> None:
        kept.append(hidden[0, 1:].detach().float())

    ids = model.encode(TEXT, special=True)[: model.model_max_context]
    handle = site.hook(keep)
    try:
        model.model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    finally:
        handle.remove()
    x = kept[0]
    features, x_hat = sae.reconstruct(x)
    norms = sae.W_dec.float().norm(dim=-1)
    variance = (x - x.mean(0)).pow(2).sum().clamp_min(1e-12)
    return {
        "l0": float((features > 0).sum(-1).float().mean()),
        "fvu": float((x - x_hat).pow(2).sum() / variance),
        "residual_norm": float(x.norm(dim=-1).median()),
        "decoder_norm_min": float(norms.min()),
        "decoder_norm_max": float(norms.max()),
    }


def warnings(check: dict[str, float], claimed_l0: float | None) -> list[str]:
    """What the figures say against the checkpoint's claims."""
    found: list[str] = []
    l0, fvu = check["l0"], check["fvu"]
    if not fvu <= FVU_MAXIMUM:
        found.append(
            f"the SAE leaves {fvu:.2f} of the variance unexplained here: "
            "probably another model, layer, site or normalisation than it was trained for"
        )
    if l0 == 0:
        found.append(
            "no feature fires on a plain text: the SAE does not read this model's activations"
        )
    elif claimed_l0 and not claimed_l0 / L0_FACTOR <= l0 <= claimed_l0 * L0_FACTOR:
        found.append(f"{l0:.0f} features fire per token, the checkpoint claims {claimed_l0:.0f}")
    return found
