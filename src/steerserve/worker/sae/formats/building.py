"""Makes the claims of a checkpoint, and the SAE itself, from its description."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Claims
from steerserve.rules.saes import sites as sae_sites
from steerserve.worker.sae.canonical import (
    NEEDS_K,
    SMALLEST,
    GateWeights,
    Sae,
    fits,
    kept,
    row_norms,
)
from steerserve.worker.sae.formats.description import GATED, SCALED, Description, needs
from steerserve.worker.sae.formats.shapes import Dimensions, dimensions_of, misfit, shapes_of

SCALE_MINIMUM = 1e-9
"""Scalar norms below this, or above its inverse, overflow or vanish in float32."""

UNCALIBRATED = (
    "the SAE was trained on activations scaled by a factor that the checkpoint does not hold: feature values and "
    "steering strengths are uncalibrated; give the factor as the override norm_factor"
)


def claims(description: Description) -> Claims:
    """The claims of the checkpoint. All shapes are checked.

    Raises:
        Refusal: SAE_LOAD_FAILED when a tensor is missing or its shape does not fit the others.
    """
    tensors = description.tensors
    warnings = list(description.warnings)
    missing = needs(description)
    if description.site is None and description.hook_name:
        missing.append("site")
        why = sae_sites.objection(description.hook_name)
        warnings.append(f"the SAE reads at {description.hook_name!r}, {why}")
    if description.normalisation == SCALED and description.norm_factor is None:
        warnings.append(UNCALIBRATED)
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
        # compressed tensors take more bytes than their file
        size_bytes=max(tensors.path.stat().st_size, tensors.size_bytes),
        normalisation=description.normalisation,
        is_centred=description.is_centred,
        reason=description.reason,
        needs=[] if description.reason else missing,
        warnings=warnings,
        tensors=shapes_of(tensors),
    )


def _sizes(description: Description) -> tuple[int, int]:
    """d_in and d_sae. They are 0 where a checkpoint that can never be attached does not show them."""
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
    """The SAE in canonical form, its matrices in `dtype` (None: the dtype of the file). If the operator did not ask for
    `dtype` and a weight is beyond its range, the matrices are in bfloat16.

    Raises:
        Refusal: SAE_INCOMPATIBLE for a checkpoint that can never be attached; SAE_LOAD_FAILED for a part that is
            missing, not finite or of the wrong shape, and when an override is needed.
    """
    _check_computable(description)
    shape = dimensions_of(description)
    parts = _Parts(description, shape)
    W_dec = parts.decoder()
    is_scaled = description.normalisation == SCALED
    c = (description.norm_factor or 1.0) if is_scaled else 1.0
    scale = c / description.embedding_scale
    if not SCALE_MINIMUM <= scale <= 1 / SCALE_MINIMUM:
        raise Refusal(
            "SAE_LOAD_FAILED", f"the scale {scale:.3g} of the SAE's input is out of range"
        )
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
        # sae-lens scales only the matrices of an embedding's SAE: decoding multiplies b_dec by the scale again
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


def _check_computable(description: Description) -> None:
    if description.reason:
        raise Refusal("SAE_INCOMPATIBLE", description.reason, format=description.format)
    missing = needs(description)
    if missing:
        shapes = shapes_of(description.tensors)
        stored = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"the files do not say how the SAE computes; give the overrides {', '.join(missing)}. "
            f"The file holds {stored}",
            needs=missing,
            tensors=shapes,
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an SAE as tensors, read from the file of its description."""

    description: Description
    shape: Dimensions

    def matrix(self, part: str) -> Tensor:
        """A matrix in the dtype of the file and the canonical orientation; a view where it is stored transposed."""
        stored = self._finite(part)
        stored = stored.float() if stored.dtype == torch.float64 else stored
        return stored.T if part in self.shape.transposed else stored

    def vector(self, part: str, length: int) -> Tensor:
        """A vector in float32; zeros where the checkpoint has none."""
        if self.description.parts.get(part) not in self.description.tensors.infos:
            return torch.zeros(length)
        return self._finite(part).float().reshape(-1).expand(length).clone()

    def thresholds(self, W_dec: Tensor, c: float) -> Tensor:
        """The threshold of every feature, for pre-activations of inputs that are scaled by c."""
        description, d_sae = self.description, self.shape.d_sae
        if "log_threshold" in description.parts:
            values = self.vector("log_threshold", d_sae).exp()
        elif "threshold" in description.parts:
            values = self.vector("threshold", d_sae)
        else:
            values = torch.full((d_sae,), float(description.threshold or 0.0))
        if description.select_by_decoder_norm:
            values = values / row_norms(W_dec).clamp_min(SMALLEST)
        values = values * c if description.threshold_is_raw else values
        if not torch.isfinite(values).all():
            raise misfit(description, "a threshold is not a finite number")
        return values

    def decoder(self) -> Tensor:
        """W_dec, each row multiplied by the factor that finetuning gave to it (SAELens before 6). The product is in the
        dtype of the file, or in float32 where it is beyond the range of that dtype."""
        W_dec = self.matrix("W_dec")
        if "scaling_factor" not in self.description.parts:
            return W_dec
        factor = self.vector("scaling_factor", self.shape.d_sae)
        product = W_dec.float() * factor[:, None]
        cast = product.to(W_dec.dtype)
        if not _is_finite(product):
            fault = "a decoder row multiplied by its scaling_factor is not finite"
            raise misfit(self.description, fault)
        return cast if _is_finite(cast) else product

    def _finite(self, part: str) -> Tensor:
        name = self.description.parts[part]
        tensor = self.description.tensors.read(name)
        if not _is_finite(tensor):
            raise misfit(self.description, f"{name} holds NaN or infinite values")
        return tensor


def _is_finite(tensor: Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return math.isfinite(low) and math.isfinite(high)
