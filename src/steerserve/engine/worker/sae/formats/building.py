"""From a reading to what is claimed and to the SAE itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steerserve.engine.wire.messages import Claims
from steerserve.engine.worker.sae.canonical import (
    NEEDS_K,
    SMALLEST,
    Gate,
    Sae,
    fits,
    kept,
    row_norms,
)
from steerserve.engine.worker.sae.formats.reading import GATED, SCALED, Reading, needs
from steerserve.engine.worker.sae.formats.shapes import Shape, listed, measured, misfit
from steerserve.errors import Refusal

SCALE_MINIMUM = 1e-9
"""Scalar norms as small as this, or as large as its inverse, leave no numbers in float32."""

UNCALIBRATED = (
    "the SAE was trained on activations scaled by a factor that the checkpoint does not hold: its values are "
    "uncalibrated, and so are steering strengths; the override norm_factor gives it"
)


def claims(reading: Reading) -> Claims:
    """What the checkpoint claims, every shape checked.

    Raises:
        Refusal: SAE_LOAD_FAILED when a tensor is missing or of a shape that does not fit the others.
    """
    tensors = reading.tensors
    warned = list(reading.warnings)
    missing = needs(reading)
    if reading.site is None and reading.hook_name:
        missing.append("site")
        warned.append(f"the SAE reads at {reading.hook_name!r}, a place that is not known")
    if reading.normalisation == SCALED and reading.norm_factor is None:
        warned.append(UNCALIBRATED)
    d_in, d_sae = _sizes(reading)
    weights = tensors.infos.get(reading.parts.get("W_dec", ""))
    return Claims(
        format=reading.format,
        architecture=reading.architecture,
        d_in=d_in,
        d_sae=d_sae,
        dtype=weights.dtype if weights else "",
        hook_name=reading.hook_name,
        site=reading.site,
        layer=reading.layer,
        model_name=reading.model_name,
        l0=reading.l0,
        # compressed tensors are larger than their file
        size_bytes=max(tensors.path.stat().st_size, tensors.size_bytes),
        normalisation=reading.normalisation,
        is_centred=reading.is_centred,
        reason=reading.reason,
        needs=[] if reading.reason else missing,
        warnings=warned,
        tensors=listed(tensors),
    )


def _sizes(reading: Reading) -> tuple[int, int]:
    """d_in and d_sae. Of what can never be attached they are told as far as they can be: 0 for unknown."""
    if reading.reason is None:
        shape = measured(reading)
        return shape.d_in, shape.d_sae
    infos = reading.tensors.infos
    encoder = infos.get(reading.parts.get("W_enc", ""))
    bias = infos.get(reading.parts.get("b_enc", ""))
    if encoder is None or len(encoder.shape) != 2:
        return 0, 0
    d_sae = bias.shape[0] if bias is not None and len(bias.shape) == 1 else max(encoder.shape)
    return (min(encoder.shape) if d_sae == max(encoder.shape) else max(encoder.shape)), d_sae


def built(reading: Reading, dtype: torch.dtype | None = None, *, is_asked: bool = True) -> Sae:
    """The SAE in canonical form, its matrices in `dtype`, None for that of the file. Where the operator has not asked for it
    and it has no room for a weight, they are in bfloat16.

    Raises:
        Refusal: SAE_INCOMPATIBLE for what can never be attached; SAE_LOAD_FAILED for a part that is missing, misshapen or
            not finite, or that an override must tell.
    """
    if reading.reason:
        raise Refusal("SAE_INCOMPATIBLE", reading.reason, format=reading.format)
    missing = needs(reading)
    if missing:
        keys = listed(reading.tensors)
        found = ", ".join(f"{name} {shape}" for name, shape in keys.items())
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"the checkpoint does not say all that computing it takes; give the overrides {', '.join(missing)}. "
            f"It holds {found}",
            needs=missing,
            tensors=keys,
        )
    shape = measured(reading)
    read = _Parts(reading, shape)
    W_dec = read.matrix("W_dec")
    factor = read.finetuned()
    if factor is not None:
        product = W_dec.float() * factor[:, None]
        W_dec = product.to(W_dec.dtype) if _is_finite(product.to(W_dec.dtype)) else product
        if not _is_finite(W_dec):
            raise misfit(reading, "a decoder row multiplied by its scaling_factor is not finite")
    is_scaled = reading.normalisation == SCALED
    c = (reading.norm_factor or 1.0) if is_scaled else 1.0
    scale = c / reading.embedding_scale
    if not SCALE_MINIMUM <= scale <= 1 / SCALE_MINIMUM:
        raise Refusal("SAE_LOAD_FAILED", f"the scale {scale:.3g} of what the SAE reads is none")
    gate = None
    if reading.activation == "gated":
        gate = Gate(*(read.vector(part, shape.d_sae) for part in GATED))
    W_enc = read.matrix("W_enc")
    if dtype is not None and not is_asked and not (fits(W_enc, dtype) and fits(W_dec, dtype)):
        dtype = torch.bfloat16
    return Sae(
        W_enc=kept(W_enc, dtype),
        b_enc=read.vector("b_enc", shape.d_sae),
        W_dec=kept(W_dec, dtype),
        # as sae-lens: of an embedding's SAE only the matrices know the other scale
        b_dec=read.vector("b_dec", shape.d_in) / reading.embedding_scale,
        activation=str(reading.activation),
        input_scale=scale,
        normalisation="none" if is_scaled else reading.normalisation,
        subtract_b_dec=bool(reading.subtract_b_dec),
        threshold=read.thresholds(W_dec, c) if reading.activation == "jumprelu" else None,
        gate=gate,
        k=reading.k if reading.activation in NEEDS_K else None,
        scale_by_decoder_norm=reading.scale_by_decoder_norm,
        select_by_decoder_norm=reading.select_by_decoder_norm
        and reading.activation in ("topk", "abstopk"),
        is_centred=bool(reading.is_centred),
        is_calibrated=not is_scaled or reading.norm_factor is not None,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a reading as tensors."""

    reading: Reading
    shape: Shape

    def matrix(self, part: str) -> Tensor:
        """In the dtype of the file and the canonical orientation: a view where it is stored the other way round."""
        stored = self._finite(part)
        stored = stored.float() if stored.dtype == torch.float64 else stored
        return stored.T if part in self.shape.transposed else stored

    def vector(self, part: str, length: int) -> Tensor:
        """In float32; zeros where the checkpoint has none."""
        if self.reading.parts.get(part) not in self.reading.tensors.infos:
            return torch.zeros(length)
        return self._finite(part).float().reshape(-1).expand(length).clone()

    def thresholds(self, W_dec: Tensor, c: float) -> Tensor:
        reading, d_sae = self.reading, self.shape.d_sae
        if "log_threshold" in reading.parts:
            found = self.vector("log_threshold", d_sae).exp()
        elif "threshold" in reading.parts:
            found = self.vector("threshold", d_sae)
        else:
            found = torch.full((d_sae,), float(reading.threshold or 0.0))
        if reading.select_by_decoder_norm:
            found = found / row_norms(W_dec).clamp_min(SMALLEST)
        found = found * c if reading.threshold_is_raw else found
        if not torch.isfinite(found).all():
            raise misfit(reading, "a threshold is not a finite number")
        return found

    def finetuned(self) -> Tensor | None:
        """The factor of every feature that finetuning left for its decoder row (SAELens before 6)."""
        if "scaling_factor" not in self.reading.parts:
            return None
        return self.vector("scaling_factor", self.shape.d_sae)

    def _finite(self, part: str) -> Tensor:
        name = self.reading.parts[part]
        tensor = self.reading.tensors.read(name)
        if not _is_finite(tensor):
            raise misfit(self.reading, f"{name} holds NaN or infinite values")
        return tensor


def _is_finite(tensor: Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return math.isfinite(low) and math.isfinite(high)
