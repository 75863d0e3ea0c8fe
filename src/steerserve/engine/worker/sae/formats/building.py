"""From a description to what is claimed and to the SAE itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steerserve.engine.wire.messages import Claims
from steerserve.engine.worker.sae.canonical import (
    NEEDS_K,
    SMALLEST,
    GateWeights,
    Sae,
    fits,
    kept,
    row_norms,
)
from steerserve.engine.worker.sae.formats.description import GATED, SCALED, Description, needs
from steerserve.engine.worker.sae.formats.shapes import Dimensions, dimensions_of, misfit, shapes_of
from steerserve.errors import Refusal
from steerserve.rules import sae_sites

SCALE_MINIMUM = 1e-9
"""Scalar norms as small as this, or as large as its inverse, leave no numbers in float32."""

UNCALIBRATED = (
    "the SAE was trained on activations scaled by a factor that the checkpoint does not hold: its values are "
    "uncalibrated, and so are steering strengths; the override norm_factor gives it"
)


def claims(description: Description) -> Claims:
    """What the checkpoint claims, every shape checked.

    Raises:
        Refusal: SAE_LOAD_FAILED when a tensor is missing or of a shape that does not fit the others.
    """
    tensors = description.tensors
    warned = list(description.warnings)
    missing = needs(description)
    if description.site is None and description.hook_name:
        missing.append("site")
        why = sae_sites.objection(description.hook_name)
        warned.append(f"the SAE reads at {description.hook_name!r}, {why}")
    if description.normalisation == SCALED and description.norm_factor is None:
        warned.append(UNCALIBRATED)
    d_in, d_sae = _sizes(description)
    weights = tensors.infos.get(description.parts.get("W_dec", ""))
    return Claims(
        format=description.format,
        architecture=description.architecture,
        d_in=d_in,
        d_sae=d_sae,
        dtype=weights.dtype if weights else "",
        hook_name=description.hook_name,
        site=description.site,
        layer=description.layer,
        model_name=description.model_name,
        l0=description.l0,
        # compressed tensors are larger than their file
        size_bytes=max(tensors.path.stat().st_size, tensors.size_bytes),
        normalisation=description.normalisation,
        is_centred=description.is_centred,
        reason=description.reason,
        needs=[] if description.reason else missing,
        warnings=warned,
        tensors=shapes_of(tensors),
    )


def _sizes(description: Description) -> tuple[int, int]:
    """d_in and d_sae. Of what can never be attached they are told as far as they can be: 0 for unknown."""
    if description.reason is None:
        shape = dimensions_of(description)
        return shape.d_in, shape.d_sae
    infos = description.tensors.infos
    encoder = infos.get(description.parts.get("W_enc", ""))
    bias = infos.get(description.parts.get("b_enc", ""))
    if encoder is None or len(encoder.shape) != 2:
        return 0, 0
    d_sae = bias.shape[0] if bias is not None and len(bias.shape) == 1 else max(encoder.shape)
    return (min(encoder.shape) if d_sae == max(encoder.shape) else max(encoder.shape)), d_sae


def build(
    description: Description, dtype: torch.dtype | None = None, *, is_asked: bool = True
) -> Sae:
    """The SAE in canonical form, its matrices in `dtype`, None for that of the file. Where the operator has not asked for it
    and it has no room for a weight, they are in bfloat16.

    Raises:
        Refusal: SAE_INCOMPATIBLE for what can never be attached; SAE_LOAD_FAILED for a part that is missing, misshapen or
            not finite, or that an override must tell.
    """
    if description.reason:
        raise Refusal("SAE_INCOMPATIBLE", description.reason, format=description.format)
    missing = needs(description)
    if missing:
        keys = shapes_of(description.tensors)
        found = ", ".join(f"{name} {shape}" for name, shape in keys.items())
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"the checkpoint does not say all that computing it takes; give the overrides {', '.join(missing)}. "
            f"It holds {found}",
            needs=missing,
            tensors=keys,
        )
    shape = dimensions_of(description)
    parts = _Parts(description, shape)
    W_dec = parts.matrix("W_dec")
    factor = parts.finetuned()
    if factor is not None:
        product = W_dec.float() * factor[:, None]
        W_dec = product.to(W_dec.dtype) if _is_finite(product.to(W_dec.dtype)) else product
        if not _is_finite(W_dec):
            raise misfit(
                description, "a decoder row multiplied by its scaling_factor is not finite"
            )
    is_scaled = description.normalisation == SCALED
    c = (description.norm_factor or 1.0) if is_scaled else 1.0
    scale = c / description.embedding_scale
    if not SCALE_MINIMUM <= scale <= 1 / SCALE_MINIMUM:
        raise Refusal("SAE_LOAD_FAILED", f"the scale {scale:.3g} of what the SAE reads is none")
    gate = None
    if description.activation == "gated":
        gate = GateWeights(*(parts.vector(part, shape.d_sae) for part in GATED))
    W_enc = parts.matrix("W_enc")
    if dtype is not None and not is_asked and not (fits(W_enc, dtype) and fits(W_dec, dtype)):
        dtype = torch.bfloat16
    return Sae(
        W_enc=kept(W_enc, dtype),
        b_enc=parts.vector("b_enc", shape.d_sae),
        W_dec=kept(W_dec, dtype),
        # as sae-lens: of an embedding's SAE only the matrices know the other scale
        b_dec=parts.vector("b_dec", shape.d_in) / description.embedding_scale,
        activation=str(description.activation),
        input_scale=scale,
        normalisation="none" if is_scaled else description.normalisation,
        subtract_b_dec=bool(description.subtract_b_dec),
        threshold=parts.thresholds(W_dec, c) if description.activation == "jumprelu" else None,
        gate=gate,
        k=description.k if description.activation in NEEDS_K else None,
        scale_by_decoder_norm=description.scale_by_decoder_norm,
        select_by_decoder_norm=description.select_by_decoder_norm
        and description.activation in ("topk", "abstopk"),
        is_centred=bool(description.is_centred),
        is_calibrated=not is_scaled or description.norm_factor is not None,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a description as tensors."""

    description: Description
    shape: Dimensions

    def matrix(self, part: str) -> Tensor:
        """In the dtype of the file and the canonical orientation: a view where it is stored the other way round."""
        stored = self._finite(part)
        stored = stored.float() if stored.dtype == torch.float64 else stored
        return stored.T if part in self.shape.transposed else stored

    def vector(self, part: str, length: int) -> Tensor:
        """In float32; zeros where the checkpoint has none."""
        if self.description.parts.get(part) not in self.description.tensors.infos:
            return torch.zeros(length)
        return self._finite(part).float().reshape(-1).expand(length).clone()

    def thresholds(self, W_dec: Tensor, c: float) -> Tensor:
        description, d_sae = self.description, self.shape.d_sae
        if "log_threshold" in description.parts:
            found = self.vector("log_threshold", d_sae).exp()
        elif "threshold" in description.parts:
            found = self.vector("threshold", d_sae)
        else:
            found = torch.full((d_sae,), float(description.threshold or 0.0))
        if description.select_by_decoder_norm:
            found = found / row_norms(W_dec).clamp_min(SMALLEST)
        found = found * c if description.threshold_is_raw else found
        if not torch.isfinite(found).all():
            raise misfit(description, "a threshold is not a finite number")
        return found

    def finetuned(self) -> Tensor | None:
        """The factor of every feature that finetuning left for its decoder row (SAELens before 6)."""
        if "scaling_factor" not in self.description.parts:
            return None
        return self.vector("scaling_factor", self.shape.d_sae)

    def _finite(self, part: str) -> Tensor:
        name = self.description.parts[part]
        tensor = self.description.tensors.read(name)
        if not _is_finite(tensor):
            raise misfit(self.description, f"{name} holds NaN or infinite values")
        return tensor


def _is_finite(tensor: Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return math.isfinite(low) and math.isfinite(high)
