"""The self-check of an attached SAE: does it reconstruct this model's activations as well as its claims say?

The model runs a short text once, without steering. The first position and special tokens do not count, because SAEs are
not trained on them. Bad figures become warnings. The check refuses an SAE only if the site does not give rows of its
width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Claims, Overrides
from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.plain import whole
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import NEEDS_K, Sae
from steerserve.worker.sae.sites import Site

TEXT = (
    "One morning Anna walked down to the harbour with her brother. The boats were coming home, and the fishermen "
    'carried baskets up the stone steps. "Did you sleep well?" she asked. He laughed and said that the wind had '
    "kept him awake. In the kitchen their mother was making soup, and the whole house smelled of onions and bread. "
    "After lunch they read a book about stars, wrote two letters, and played outside until it was dark."
)
L0_FACTOR = 3.0
FVU_MAXIMUM = 0.7
CENTRED_SHARE = 0.8
"""An SAE counts as centred if centring leaves at most this share of the variance that is unexplained without it."""
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
"""Sites whose values have no mean when writing weights are centred: the stream, and the outputs added to it."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The SAE to attach, with the figures and the warnings of its check. The L0 of an SAE that always chooses k
    features would look right in any model, so it is no figure."""

    sae: Sae
    check: dict[str, float]
    warnings: list[str]


def examine(
    model: Checkpoint, sae: Sae, site: Site, claims: Claims, said: Overrides | None = None
) -> Examined:
    """Check the SAE at its site. If its files leave open whether it reads a centred stream, decide that here.

    TransformerLens by default centres the weights that write into the stream of LayerNorm models, and older checkpoints
    do not say whether it did. An override in `said` decides instead.

    Raises:
        Refusal: SAE_INCOMPATIBLE when the site does not give rows of its width.
    """
    x = _values(model, sae, site)
    warned: list[str] = []
    check = figures(sae, x)
    is_open = claims.is_centred is None and (said is None or said.is_centred is None)
    if is_open and sae_sites.is_lens_name(claims.hook_name) and _may_be_centred(model, site):
        sae, check, why = _centring(sae, x, check)
        warned += why
    warned += warnings(check, claims.l0)
    if not sae.is_calibrated:
        warned.append(_uncalibrated(sae, x, check["fvu"]))
    if check["decoder_norm_min"] == 0 and check["decoder_norm_max"] > 0:
        warned.append("some decoder rows are zero: steering those features does nothing")
    if sae.activation in NEEDS_K:
        del check["l0"]
    return Examined(sae, _finite(check), warned)


def suited(
    model: Checkpoint, sae: Sae, site: Site, said: Overrides | None = None
) -> tuple[Sae, list[str]]:
    """The SAE without centring where the site's values cannot be centred, whatever its files say; and a warning of it.

    Values cannot be centred in models with RMSNorm, and at sites that centred writing weights do not reach. An override
    in `said` decides instead.
    """
    is_overridden = said is not None and said.is_centred is not None
    if not sae.is_centred or is_overridden or _may_be_centred(model, site):
        return sae, []
    why = (
        f"the checkpoint asks for a centred stream, and {site.name} of this model is never centred: "
        "the SAE is used without centring (the override is_centred changes this)"
    )
    return replace(sae, is_centred=False), [why]


def _may_be_centred(model: Checkpoint, site: Site) -> bool:
    return site.name in _CENTRED_SITES and sites.has_layer_norm(model.model, model.layers)


@torch.inference_mode()
def figures(sae: Sae, x: Tensor) -> dict[str, float]:
    """The figures of an SAE on rows x [n, d_in]: how many rows there are, how many features are active in any of them,
    L0, the fraction of variance unexplained (FVU), the median norm of the rows, and the smallest and largest norm of
    the decoder rows. A few rows cannot show that a feature is dead.

    FVU = ||x - x_hat||^2 / ||x - mean(x)||^2. Where the SAE is centred, the mean of each row of x is subtracted first.
    """
    if sae.is_centred:
        x = x - x.mean(-1, keepdim=True)
    features, x_hat = sae.reconstruct(x)
    fires = features != 0
    norms = sae.decoder_norms()
    variance = (x - x.mean(0)).pow(2).sum().clamp_min(SMALLEST)
    return {
        "tokens": float(len(x)),
        "features_fired": float(fires.any(0).sum()),
        "l0": float(fires.sum(-1).float().mean()),
        "fvu": float((x - x_hat).pow(2).sum() / variance),
        "residual_norm": float(x.norm(dim=-1).median()),
        "decoder_norm_min": float(norms.min()),
        "decoder_norm_max": float(norms.max()),
    }


def warnings(check: dict[str, float], claimed_l0: float | None) -> list[str]:
    """Warnings where the figures contradict the checkpoint's claims."""
    warned: list[str] = []
    l0, fvu = check["l0"], check["fvu"]
    if not fvu <= FVU_MAXIMUM:
        warned.append(
            f"the SAE leaves {fvu:.2f} of the variance unexplained here: "
            "it was probably trained on another model, layer, site or normalisation"
        )
    if l0 == 0:
        warned.append(
            "no feature fires on a plain text: the SAE does not read this model's activations"
        )
    elif claimed_l0 and not claimed_l0 / L0_FACTOR <= l0 <= claimed_l0 * L0_FACTOR:
        warned.append(
            f"{l0:.0f} features fire per token, and the checkpoint claims {claimed_l0:.0f}: the activation or the "
            "normalisation of the SAE is probably misread, or the SAE was trained on another layer"
        )
    return warned


@torch.inference_mode()
def _values(model: Checkpoint, sae: Sae, site: Site) -> Tensor:
    """The site's values [n, width] over the text, in float32 and on the device of the SAE."""
    kept: list[Tensor] = []
    handle = site.hook(lambda value: kept.append(value.clone()))
    ids = model.encode(TEXT, special=True)
    first = model.tokenizer.bos_token_id
    if first is not None and ids[:1] != [first]:
        ids = [first, *ids]
    ids = ids[: model.model_max_context]
    try:
        model.model(**whole(model.model, torch.tensor([ids], device=model.device)))
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
    """The SAE, centred or not, its figures, and the warning of the choice."""
    centred = replace(sae, is_centred=True)
    other = figures(centred, x)
    plain, fvu = check["fvu"], other["fvu"]
    if not (fvu <= CENTRED_SHARE * plain and plain - fvu >= CENTRED_GAIN):
        return sae, check, []
    why = (
        f"the SAE is used as one of the centred residual stream: it leaves {fvu:.2f} of the variance "
        f"unexplained with each token's mean subtracted, and {plain:.2f} without; the override is_centred changes this"
    )
    return centred, other, [why]


def _uncalibrated(sae: Sae, x: Tensor, fvu: float) -> str:
    """A warning with the norm factor c = sqrt(d_in) / E||x|| measured on this text, and the FVU that c gives."""
    if sae.is_centred:
        x = x - x.mean(-1, keepdim=True)
    c = sae.d_in**0.5 / float(x.norm(dim=-1).mean().clamp_min(SMALLEST))
    scaled = figures(sae, x * c)["fvu"]
    return (
        f"the norm factor of the SAE's training is not known, so its activations are uncalibrated; measured "
        f"on a short text the factor is {c:.4g}, which leaves {scaled:.2f} of the variance unexplained "
        f"({fvu:.2f} without it): set the factor with the override norm_factor"
    )


def _finite(check: dict[str, float]) -> dict[str, float]:
    """The figures that are finite; warnings report the others."""
    return {name: value for name, value in check.items() if abs(value) < float("inf")}
