"""One sparse autoencoder in its canonical form: encode, decode, and the direction that steering adds.

Encoding, in this order: cast -> centre -> normalise and scale the input -> subtract b_dec if flagged -> x @ W_enc +
b_enc -> activation. Decoding: f @ W_dec + b_dec -> undo the scale, the normalisation and the centring. The conventions
are those of SAELens 6.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.worker import memory
from steerserve.worker.model import packing

ACTIVATIONS = ("relu", "topk", "abstopk", "groupmax", "jumprelu", "gated")
NEEDS_K = ("topk", "abstopk", "groupmax")
"""Activations that choose k features among all, so that every feature must be computed first."""

NORMALISATIONS = ("none", "layer_norm", "constant_norm_rescale")
CHUNK = 1024
"""How many features' half-precision weights are widened to float32 at a time. These stay in the processor's cache."""
ROWS_CHUNK = 16_384
SLICE_NUMBERS = 1 << 22
"""The numbers of a decoder that are compared in one slice, which takes some milliseconds on a processor."""

LAYER_NORM_EPS = 1e-5
SMALLEST = 1e-12


@dataclass(frozen=True, slots=True)
class GateWeights:
    """The extra parameters of a gated SAE (Rajamanoharan et al. 2024, arXiv:2404.16014), each [d_sae]."""

    b_gate: Tensor
    b_mag: Tensor
    r_mag: Tensor

    def to(self, device: torch.device) -> GateWeights:
        return GateWeights(self.b_gate.to(device), self.b_mag.to(device), self.r_mag.to(device))

    def select_features(self, features: Tensor) -> GateWeights:
        """The parameters of the features with these indices."""
        return GateWeights(self.b_gate[features], self.b_mag[features], self.r_mag[features])


@dataclass(frozen=True, slots=True)
class Sae:
    """A sparse autoencoder.

    Shapes: W_enc [d_in, d_sae], b_enc [d_sae], W_dec [d_sae, d_in] (row i is the direction of feature i), b_dec [d_in],
    threshold [d_sae] for jumprelu. The matrices may be float32, bfloat16 or float16 and may be transposed views. Biases
    and thresholds from a file are float32. All computation is in float32.

    Attributes:
        activation: one of ACTIVATIONS. topk keeps the k largest pre-activations of a row, rectified (Gao et al. 2024,
            arXiv:2406.04093). abstopk keeps the k largest by magnitude, with their sign (arXiv:2510.00404). groupmax
            splits the features into k equal, contiguous groups and keeps the largest of each, rectified.
        normalisation: one of NORMALISATIONS. It is applied to each row and undone on the output.
        input_scale: the scalar norm c. Rows are multiplied by c, and the decoded output is divided by c. c is not
            multiplied into the matrices, because half precision would round the products.
        scale_by_decoder_norm: pre-activations are multiplied by ||W_dec row||, and activations are divided by it before
            decoding.
        select_by_decoder_norm: the k features are chosen by pre-activation x ||W_dec row||; their values are not
            scaled.
        is_centred: the SAE was trained on activations with their mean over d_in subtracted. TransformerLens centres
            writing weights in this way.
        is_calibrated: False where the scalar norm of the training is not known.
        packed: a second copy of W_enc, in the layout of the processor's matrix kernels (`packed_encoder`).
    """

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    activation: str
    normalisation: str = "none"
    input_scale: float = 1.0
    subtract_b_dec: bool = False
    threshold: Tensor | None = None
    gate: GateWeights | None = None
    k: int | None = None
    scale_by_decoder_norm: bool = False
    select_by_decoder_norm: bool = False
    is_centred: bool = False
    is_calibrated: bool = True
    packed: packing.Packed | None = field(default=None, repr=False, compare=False)
    _norms: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def d_in(self) -> int:
        return int(self.W_dec.shape[1])

    @property
    def d_sae(self) -> int:
        return int(self.W_dec.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the matrices."""
        return self.W_dec.dtype

    @property
    def size_bytes(self) -> int:
        """The bytes of all parameters."""
        return self.encoder_bytes + _bytes(self.W_dec)

    @property
    def encoder_bytes(self) -> int:
        """The bytes of the parameters that encoding reads: all except W_dec."""
        gate = [self.gate.b_gate, self.gate.b_mag, self.gate.r_mag] if self.gate else []
        held = [self.W_enc, self.b_enc, self.b_dec, self.threshold, *gate]
        return sum(_bytes(t) for t in held if t is not None)

    def held_memory(self) -> Iterator[memory.Held]:
        """All that is held in memory, with the packed copy of W_enc."""
        yield from memory.tensors_in({f.name: getattr(self, f.name) for f in fields(self)}, 2)
        if isinstance(self.packed, memory.Native):
            yield self.packed

    # ------------------------------------------------------------ devices

    def encoder_to(self, device: torch.device) -> Sae:
        """This SAE with the parameters of encoding on `device`. W_dec, which `direction` reads, stays where it is."""
        if self.W_enc.device == device:
            return self
        if self.scale_by_decoder_norm or self.select_by_decoder_norm:
            self.decoder_norms()
        moved: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor | GateWeights) and each.name not in ("W_dec", "packed"):
                moved[each.name] = value.to(device)
        moved["packed"] = None
        return replace(self, **moved)._with_norms(norms.to(device) for norms in self._norms)

    @property
    def may_pack(self) -> bool:
        """Whether encoding can be faster with a second copy of the encoder's matrix."""
        return self.packed is None and packing.can_pack(self.W_enc.dtype)

    def packed_encoder(self) -> Sae:
        """This SAE with a second copy of W_enc, with which `encode` takes less than half the time on a processor. It is
        the same SAE where there are no kernels for its dtype."""
        packed = packing.laid_out(self.W_enc.t().contiguous(), torch.float32)
        return replace(self, packed=packed)._with_norms(self._norms)

    def _with_norms(self, norms: Iterable[Tensor]) -> Sae:
        """This SAE, with decoder norms that are already computed."""
        self._norms.extend(norms)
        return self

    # ------------------------------------------------------------ geometry of the decoder

    def direction(self, values: Mapping[int, float]) -> Tensor:
        """The sum of value x decoder row, in float32 [d_in] and in the unit of the stream: each stored row is divided
        by the scalar norm, and the mean of the sum is subtracted where the SAE is centred."""
        device = self.W_dec.device
        index = torch.tensor(sorted(values), dtype=torch.long, device=device)
        weights = torch.tensor(
            [values[i] for i in sorted(values)], dtype=torch.float32, device=device
        )
        summed = weights @ self.W_dec[index].float() / self.input_scale
        return summed - summed.mean() if self.is_centred else summed

    def written(self, features: Sequence[int]) -> Tensor:
        """What an activation of 1 of each feature adds to the stream, float32 [len(features), d_in], where the SAE
        normalises its rows before `row_scale`."""
        rows = self.directions(features)
        if not self.scale_by_decoder_norm:
            return rows
        index = torch.as_tensor(features, dtype=torch.long, device=rows.device)
        return rows / self.decoder_norms().to(rows.device)[index, None].clamp_min(SMALLEST)

    def directions(self, features: Sequence[int]) -> Tensor:
        """What steering each feature with 1 adds to the stream, float32 [len(features), d_in] (see `direction`)."""
        index = torch.as_tensor(features, dtype=torch.long, device=self.W_dec.device)
        rows = self.W_dec[index].float() / self.input_scale
        return rows - rows.mean(-1, keepdim=True) if self.is_centred else rows

    def row_scale(self, x: Tensor) -> Tensor:
        """The scale [..., 1] by which the normalisation of each row x [..., d_in] multiplies what is decoded; a tensor
        without dimensions where rows are not normalised."""
        return self._normalise(x.float())[2]

    def decoder_norms(self) -> Tensor:
        """||W_dec row|| of every feature in the unit of the stream, float32 [d_sae]; computed once."""
        if not self._norms:
            self._norms.append(row_norms(self.W_dec) / self.input_scale)
        return self._norms[0]

    def nearest(self, feature: int, n: int) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """In slices, the `n` other features whose decoder rows have the largest cosine with the row of `feature`.

        Returns indices (int64) and cosines (float32), the largest first. A row of zeros has cosine 0 with every other
        row.
        """
        cosines = yield from self._cosines(self.W_dec[feature].float())
        cosines[feature] = -torch.inf
        return _largest(cosines, min(n, self.d_sae - 1))

    def nearest_to(self, direction: Tensor, n: int) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """In slices, the `n` features whose decoder rows have the largest cosine with `direction` [d_in], as `nearest`
        gives them."""
        cosines = yield from self._cosines(direction.to(self.W_dec.device))
        return _largest(cosines, min(n, self.d_sae))

    def _cosines(self, row: Tensor) -> Generator[None, None, Tensor]:
        """The cosine of `row` [d_in] in float32 with every decoder row [d_sae]."""
        row = row / row.norm().clamp_min(SMALLEST)
        products = []
        for part in self.W_dec.split(max(1, SLICE_NUMBERS // self.d_in)):
            products.append(part.float() @ row)
            yield
        cosines = torch.cat(products) / self.input_scale
        return cosines / self.decoder_norms().to(row.device).clamp_min(SMALLEST)

    # ------------------------------------------------------------ encode and decode

    def encode(self, x: Tensor) -> Tensor:
        """Feature activations [..., d_sae] of residual rows x [..., d_in], in float32."""
        return self._encode(self._normalise(x.float())[0])

    def encode_columns(self, x: Tensor, features: Sequence[int] | Tensor) -> Tensor:
        """Activations [..., len(features)] of the given features, equal to those of `encode`.

        Only their columns are computed, except where the activation chooses among all features.
        """
        if self.activation in NEEDS_K:
            return self.encode(x)[..., torch.as_tensor(features, device=self.W_enc.device)]
        return self.narrowed(features).encode(x)

    def narrowed(self, features: Sequence[int] | Tensor) -> Sae:
        """An SAE of only the given features, its matrices in float32. Its feature i is `features[i]` of this SAE.

        Raises:
            ValueError: where the activation chooses among all features.
        """
        if self.activation in NEEDS_K:
            raise ValueError(f"{self.activation} chooses among all features")
        index = torch.as_tensor(features, dtype=torch.long, device=self.W_enc.device)
        part = replace(
            self,
            # each feature's numbers lie together, as `encode_each` reads them
            W_enc=self.W_enc.t()[index].float().t(),
            b_enc=self.b_enc[index],
            W_dec=self.W_dec[index.to(self.W_dec.device)].float(),
            threshold=None if self.threshold is None else self.threshold[index],
            gate=None if self.gate is None else self.gate.select_features(index),
            packed=None,
        )
        return part._with_norms(norms[index.to(norms.device)] for norms in self._norms)

    def encode_each(self, x: Tensor) -> Tensor:
        """The activation of feature i on the rows x[i], for x [d_sae, T, d_in]: float32 [d_sae, T].

        Each number is one dot product that depends on nothing but its row, so it has the same bits in every batch. The
        activation must not choose among all features.
        """
        rows = self._shifted(self._normalise(x.float())[0])
        pre = (rows * self.W_enc.float().t().contiguous()[:, None]).sum(-1)
        return self._activated(pre.t()).t()

    def reconstruct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Activations [..., d_sae] of x, and the reconstruction [..., d_in] that they decode to."""
        normalised, shift, scale = self._normalise(x.float())
        features = self._encode(normalised)
        return features, self.decode(features) * scale + shift

    def without_features(self, x: Tensor) -> Tensor:
        """What is rebuilt [..., d_in] of rows x [..., d_in] where no feature is active."""
        _, shift, scale = self._normalise(x.float())
        return self.b_dec.float() / self.input_scale * scale + shift

    def decode(self, features: Tensor) -> Tensor:
        """The output [..., d_in] in float32 of activations [..., d_sae]. The normalisation of the row is not undone."""
        if self.scale_by_decoder_norm:
            features = features / self.decoder_norms().clamp_min(SMALLEST)
        if self.W_dec.dtype == torch.float32:
            return (features @ self.W_dec + self.b_dec.float()) / self.input_scale
        decoded, first = self.b_dec.float(), 0
        for part in _rows(self.W_dec):
            decoded = decoded + features[..., first : first + len(part)] @ part
            first += len(part)
        return decoded / self.input_scale

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The normalised row, and the shift and the scale that undo the normalisation on the decoded output."""
        shift, scale = x.new_zeros(()), x.new_ones(())
        if self.is_centred:
            shift = x.mean(-1, keepdim=True)
            x = x - shift
        if self.normalisation == "layer_norm":
            mean = x.mean(-1, keepdim=True)
            scale = x.std(-1, keepdim=True)
            return (x - mean) / (scale + LAYER_NORM_EPS), shift + mean, scale
        if self.normalisation == "constant_norm_rescale":
            scale = x.norm(dim=-1, keepdim=True).clamp_min(SMALLEST) / self.d_in**0.5
            return x / scale, shift, scale
        return x, shift, scale

    def _encode(self, x: Tensor) -> Tensor:
        return self._activated(self._project(self._shifted(x)))

    def _shifted(self, x: Tensor) -> Tensor:
        """The normalised row as the encoder's matrix reads it."""
        if self.input_scale != 1.0:
            x = x * self.input_scale
        return x - self.b_dec.float() if self.subtract_b_dec else x

    def _activated(self, pre: Tensor) -> Tensor:
        """The activations [..., d_sae] of the products of rows with the encoder's matrix."""
        if self.gate is not None:
            gate = (pre + self.gate.b_gate.float()) > 0
            magnitude = pre * self.gate.r_mag.float().exp() + self.gate.b_mag.float()
            return gate * magnitude.relu_()
        pre += self.b_enc.float()
        if self.scale_by_decoder_norm:
            pre *= self.decoder_norms()
        if self.activation in NEEDS_K:
            return self._chosen(pre)
        if self.activation == "jumprelu":
            assert self.threshold is not None
            return (pre > self.threshold.float()) * pre.relu_()
        return pre.relu_()

    def _project(self, x: Tensor) -> Tensor:
        """x @ W_enc in float32, [..., d_sae]."""
        if self.packed is not None:
            return packing.multiply(x, self.packed)
        if self.W_enc.dtype == torch.float32:
            return x @ self.W_enc
        chunk = CHUNK if self.W_enc.device.type == "cpu" else ROWS_CHUNK
        out = x.new_empty((*x.shape[:-1], self.W_enc.shape[1]))
        for first in range(0, self.W_enc.shape[1], chunk):
            part = self.W_enc[:, first : first + chunk].float()
            out[..., first : first + chunk] = x @ part
        return out

    def _chosen(self, pre: Tensor) -> Tensor:
        """The k pre-activations of each row that the activation keeps; the others are zero."""
        assert self.k is not None
        if self.activation == "groupmax":
            grouped = pre.unflatten(-1, (self.k, -1))
            best = grouped.max(dim=-1, keepdim=True)
            kept = torch.zeros_like(grouped).scatter_(-1, best.indices, best.values.relu())
            return kept.flatten(-2)
        ranked = pre * self.decoder_norms() if self.select_by_decoder_norm else pre
        if self.activation == "abstopk":
            ranked = ranked.abs()
        top = ranked.topk(min(self.k, self.d_sae), dim=-1, sorted=False).indices
        values = pre.gather(-1, top)
        if self.activation == "topk":
            values = values.relu_()
        return torch.zeros_like(pre).scatter_(-1, top, values)


def fits(matrix: Tensor, dtype: torch.dtype) -> bool:
    """Whether every weight is finite in `dtype`."""
    low, high = torch.aminmax(matrix)
    return max(-float(low), float(high)) <= torch.finfo(dtype).max


def kept(matrix: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy of a matrix in `dtype` (None: its own). A mapped file may change while it is used; the copy does not.

    Raises:
        Refusal: SAE_LOAD_FAILED when a weight is beyond the range of `dtype`.
    """
    if dtype is None or dtype == matrix.dtype:
        return matrix.clone()
    if not fits(matrix, dtype):
        name = str(dtype).removeprefix("torch.")
        raise Refusal(
            "SAE_LOAD_FAILED",
            f"the SAE holds weights beyond the range of {name}; keep it in bfloat16 or float32",
            dtype=name,
        )
    return matrix.to(dtype)


def row_norms(matrix: Tensor) -> Tensor:
    """The norm ||row|| of every row of a matrix [n, m] of any float dtype, in float32 [n]."""
    return torch.cat([part.norm(dim=-1) for part in _rows(matrix)])


def _rows(matrix: Tensor) -> Iterator[Tensor]:
    """The rows of a matrix in float32, ROWS_CHUNK at a time."""
    for first in range(0, matrix.shape[0], ROWS_CHUNK):
        yield matrix[first : first + ROWS_CHUNK].float()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _largest(cosines: Tensor, n: int) -> tuple[Tensor, Tensor]:
    top = cosines.topk(n)
    return top.indices, top.values.clamp(-1, 1)
