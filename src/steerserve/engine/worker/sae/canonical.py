"""One sparse autoencoder in its canonical form: encode, decode, and the direction that steering adds.

Order of encoding everywhere: cast -> normalise the input -> subtract b_dec if flagged -> x @ W_enc + b_enc ->
activation. Decoding: f @ W_dec + b_dec -> undo the normalisation. (Conventions as in SAELens, 6.x.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gate:
    """The extra parameters of a gated SAE (Rajamanoharan et al. 2024, arXiv:2404.16014), each [d_sae]."""

    b_gate: Tensor
    b_mag: Tensor
    r_mag: Tensor


@dataclass(frozen=True, slots=True)
class Sae:
    """A sparse autoencoder.

    Shapes: W_enc [d_in, d_sae], b_enc [d_sae], W_dec [d_sae, d_in] whose row i is the direction of feature i,
    b_dec [d_in], threshold [d_sae] for jumprelu. Tensors keep the dtype of the file; maths is in float32.
    """

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    activation: str
    normalisation: str = "none"
    subtract_b_dec: bool = False
    threshold: Tensor | None = None
    gate: Gate | None = None
    k: int | None = None
    scale_by_decoder_norm: bool = False

    @property
    def d_in(self) -> int:
        return int(self.W_dec.shape[1])

    @property
    def d_sae(self) -> int:
        return int(self.W_dec.shape[0])

    @property
    def size_bytes(self) -> int:
        gate = [self.gate.b_gate, self.gate.b_mag, self.gate.r_mag] if self.gate else []
        held = [self.W_enc, self.b_enc, self.W_dec, self.b_dec, self.threshold, *gate]
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def to(self, device: torch.device) -> Sae:
        """The same on another device; itself where it is there already."""
        if self.W_dec.device == device:
            return self
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Gate):
                value = Gate(*(t.to(device) for t in (value.b_gate, value.b_mag, value.r_mag)))
            moved[field.name] = value.to(device) if isinstance(value, Tensor) else value
        return Sae(**moved)

    def direction(self, values: Mapping[int, float]) -> Tensor:
        """The sum of value x decoder row as stored, in float32 [d_in]."""
        device = self.W_dec.device
        index = torch.tensor(sorted(values), dtype=torch.long, device=device)
        weights = torch.tensor(
            [values[i] for i in sorted(values)], dtype=torch.float32, device=device
        )
        return weights @ self.W_dec[index].float()

    def encode(self, x: Tensor) -> Tensor:
        """Feature activations [..., d_sae] of residual rows x [..., d_in], in float32."""
        x, _, _ = self._normalise(x.float())
        if self.subtract_b_dec:
            x = x - self.b_dec.float()
        pre = x @ self.W_enc.float()
        if self.gate is not None:
            gate = (pre + self.gate.b_gate.float()) > 0
            magnitude = pre * self.gate.r_mag.float().exp() + self.gate.b_mag.float()
            return gate * magnitude.relu()
        pre = pre + self.b_enc.float()
        if self.scale_by_decoder_norm:
            pre = pre * self.W_dec.float().norm(dim=-1)
        if self.activation == "topk":
            assert self.k is not None
            top = pre.topk(min(self.k, self.d_sae), dim=-1)
            return torch.zeros_like(pre).scatter(-1, top.indices, top.values.relu())
        if self.activation == "jumprelu":
            assert self.threshold is not None
            return pre.relu() * (pre > self.threshold.float())
        return pre.relu()

    def reconstruct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Activations [..., d_sae] of x and what they decode to [..., d_in]."""
        features = self.encode(x)
        _, mean, scale = self._normalise(x.float())
        decoded = features
        if self.scale_by_decoder_norm:
            decoded = decoded / self.W_dec.float().norm(dim=-1)
        return features, (decoded @ self.W_dec.float() + self.b_dec.float()) * scale + mean

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The normalised input, and the mean and scale that undo it."""
        zero, one = x.new_zeros(()), x.new_ones(())
        if self.normalisation == "layer_norm":
            mean = x.mean(-1, keepdim=True)
            scale = (x - mean).std(-1, keepdim=True) + 1e-5
            return (x - mean) / scale, mean, scale
        if self.normalisation == "constant_norm_rescale":
            scale = x.norm(dim=-1, keepdim=True).clamp_min(1e-12) / self.d_in**0.5
            return x / scale, zero, scale
        return x, zero, one
