"""The self-check of an attached SAE: does it reconstruct this model's activations the way its claims say?

A short text is run once, without steering; the first position and special tokens are left out, because SAEs are not
trained on them. It warns; it refuses only a place that gives no rows of the site's width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from steerserve.engine.wire.messages import Claims, Overrides
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.sae import sites
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.engine.worker.sae.sites import Site
from steerserve.errors import Refusal
from steerserve.rules import sae_sites

TEXT = (
    "One morning Anna walked down to the harbour with her brother. The boats were coming home, and the fishermen "
    'carried baskets up the stone steps. "Did you sleep well?" she asked. He laughed and said that the wind had '
    "kept him awake. In the kitchen their mother was making soup, and the whole house smelled of onions and bread. "
    "After lunch they read a book about stars, wrote two letters, and played outside until it was dark."
)
L0_FACTOR = 3.0
FVU_MAXIMUM = 0.7
CENTRED_SHARE = 0.8
"""Taken as centred when centring leaves at most this share of what is unexplained without it."""
CENTRED_GAIN = 0.02
SMALLEST = 1e-12

_CENTRED_SITES = frozenset(
    {
        sae_sites.RESID_PRE,
        sae_sites.RESID_MID,
        sae_sites.RESID_POST,
        sae_sites.ATTN_OUT,
        sae_sites.MLP_OUT,
    }
)
"""What centred writing weights leave without a mean: the stream, and what is added to it."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The SAE as it is to be attached, and what the check found."""

    sae: Sae
    check: dict[str, float]
    warnings: list[str]


def examine(
    model: Checkpoint, sae: Sae, site: Site, claims: Claims, said: Overrides | None = None
) -> Examined:
    """Check the SAE at its site, and decide whether it reads a centred stream where its files leave that open.

    TransformerLens centres the weights that write into the stream of LayerNorm models unless told not to, and older
    checkpoints do not say. What the operator `said` stands.

    Raises:
        Refusal: SAE_INCOMPATIBLE when the place gives no rows of the site's width.
    """
    x = _values(model, sae, site)
    found: list[str] = []
    check = figures(sae, x)
    is_open = claims.is_centred is None and (said is None or said.is_centred is None)
    if is_open and sae_sites.is_lens_name(claims.hook_name) and _may_be_centred(model, site):
        sae, check, why = _centring(sae, x, check)
        found += why
    found += warnings(check, claims.l0)
    if not sae.is_calibrated:
        found.append(_uncalibrated(sae, x, check["fvu"]))
    if check["decoder_norm_min"] == 0 and check["decoder_norm_max"] > 0:
        found.append("some decoder rows are zero: steering those features does nothing")
    return Examined(sae, _finite(check), found)


def suited(
    model: Checkpoint, sae: Sae, site: Site, said: Overrides | None = None
) -> tuple[Sae, list[str]]:
    """The SAE, not centred where nothing is centred, whatever its files say: a stream that RMSNorm reads, and sites that
    centred writing weights do not reach. What the operator `said` stands."""
    is_told = said is not None and said.is_centred is not None
    if not sae.is_centred or is_told or _may_be_centred(model, site):
        return sae, []
    why = (
        f"the checkpoint asks for a centred stream, which {site.name} of this model never is; not centred "
        "(the override is_centred decides otherwise)"
    )
    return replace(sae, is_centred=False), [why]


def _may_be_centred(model: Checkpoint, site: Site) -> bool:
    return site.name in _CENTRED_SITES and sites.has_layer_norm(model.model, model.layers)


def run(model: Checkpoint, sae: Sae, site: Site) -> dict[str, float]:
    """The figures of the SAE as it is, at its site, on the check's text."""
    return figures(sae, _values(model, sae, site))


@torch.inference_mode()
def figures(sae: Sae, x: Tensor) -> dict[str, float]:
    """What the SAE makes of rows x [n, d_in]: L0, fraction of variance unexplained, the fraction of features that fire in no
    row, the rows' median norm, and the norms of the decoder's rows.

    FVU = ||x - x_hat||^2 / ||x - mean(x)||^2, both without each row's mean where the SAE is centred.
    """
    if sae.is_centred:
        x = x - x.mean(-1, keepdim=True)
    features, x_hat = sae.reconstruct(x)
    fires = features != 0
    norms = sae.decoder_norms()
    variance = (x - x.mean(0)).pow(2).sum().clamp_min(SMALLEST)
    return {
        "l0": float(fires.sum(-1).float().mean()),
        "fvu": float((x - x_hat).pow(2).sum() / variance),
        "dead_fraction": float((~fires.any(0)).float().mean()),
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
        found.append(
            f"{l0:.0f} features fire per token, the checkpoint claims {claimed_l0:.0f}: "
            "its activation or normalisation is probably misread, or the layer is another"
        )
    return found


@torch.inference_mode()
def _values(model: Checkpoint, sae: Sae, site: Site) -> Tensor:
    """The site's values [n, width] over the text, in float32 and where the SAE lies."""
    kept: list[Tensor] = []
    handle = site.hook(lambda value: kept.append(value.clone()))
    ids = model.encode(TEXT, special=True)
    first = model.tokenizer.bos_token_id
    if first is not None and ids[:1] != [first]:
        ids = [first, *ids]
    ids = ids[: model.model_max_context]
    try:
        model.model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    finally:
        handle.remove()
    shape, expected = list(kept[0].shape) if kept else [], [1, len(ids), site.width]
    if shape != expected:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"{site.path} gives values of shape {shape} where {expected} was expected",
            site=site.name,
        )
    special = set(model.tokenizer.all_special_ids)
    plain = [i for i, token in enumerate(ids) if i > 0 and token not in special]
    return kept[0][0, plain].to(sae.W_enc.device, torch.float32)


def _centring(
    sae: Sae, x: Tensor, check: dict[str, float]
) -> tuple[Sae, dict[str, float], list[str]]:
    """The SAE centred or not, its figures, and what to say about it."""
    centred = replace(sae, is_centred=True)
    other = figures(centred, x)
    plain, fvu = check["fvu"], other["fvu"]
    if not (fvu <= CENTRED_SHARE * plain and plain - fvu >= CENTRED_GAIN):
        return sae, check, []
    why = (
        f"taken as an SAE of the centred residual stream: it leaves {fvu:.2f} of the variance unexplained with each "
        f"token's mean taken away, {plain:.2f} without; the override is_centred decides otherwise"
    )
    return centred, other, [why]


def _uncalibrated(sae: Sae, x: Tensor, fvu: float) -> str:
    """What an unknown norm factor c = sqrt(d_in) / E||x|| would be on this text, and what it would do."""
    if sae.is_centred:
        x = x - x.mean(-1, keepdim=True)
    c = sae.d_in**0.5 / float(x.norm(dim=-1).mean().clamp_min(SMALLEST))
    scaled = figures(sae, x * c)["fvu"]
    return (
        f"the norm factor that the SAE was trained with is not known, so its activations are uncalibrated; on a short text "
        f"it comes to {c:.4g}, with which {scaled:.2f} of the variance is left unexplained ({fvu:.2f} without): "
        "set it with the override norm_factor"
    )


def _finite(check: dict[str, float]) -> dict[str, float]:
    """The figures that are numbers; the warnings tell of the others."""
    return {name: value for name, value in check.items() if abs(value) < float("inf")}
