"""The way from the residual stream behind the last layer to the logits: the final norm, the output embedding, and the
constants of the architecture.

`Unembedding.logits` is the whole way. `Unembedding.pull` and `Unembedding.scores` are its linear part: what a direction
in the stream does to the logit of each token, but for the length by which the norm divides.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from steerserve.errors import Refusal
from steerserve.worker.model import truth
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.comparing import own_code
from steerserve.worker.model.layers import decoder_layers
from steerserve.worker.model.packing import PackedLinear

DIRECTIONS_AT_ONCE = 256
SLICE_PRODUCTS = 1 << 27
"""The directions that are compared at once, and the most products of two numbers between two pauses."""

BLOCK_ELEMENTS = 1 << 23
"""The most numbers of the output embedding that are widened to float32 at once, and the most scores at once."""

_PROBE = 64.0
"""The size of the stream that the norm is tried with: the constant that it adds to a variance is lost beside it, and a
power of two keeps the mean exact."""


class Unembedding:
    """The final norm and the output embedding of a loaded model.

    Attributes:
        norm: the module between the last layer and the head; None where the architecture has none.
        head: the output embedding.
        gain: float32 [hidden], by which the norm multiplies the normalised stream, as the model applies it (Gemma's
            norms multiply by 1 + weight). Biases are no part of it.
        is_centred: the norm takes the mean over the stream's width off (LayerNorm).
        scale, softcap: logits are head(norm(x)) x scale; where there is a softcap, they become softcap x tanh(logits /
            softcap).

    Raises:
        Refusal: SAE_INCOMPATIBLE where the layers are not found, or the head does not read the stream's width.
    """

    def __init__(self, model: Checkpoint) -> None:
        self.head = model.model.get_output_embeddings()
        if int(self.head.in_features) != model.hidden_size:
            raise Refusal(
                "SAE_INCOMPATIBLE",
                f"the output embedding reads {self.head.in_features} numbers, the residual stream has "
                f"{model.hidden_size}",
            )
        self.norm = _final_norm(model.model, model.layers)
        self.gain, self.is_centred = _linear_part(self.norm, model.hidden_size, self.device)
        self.scale, self.softcap = _constants(model.model)
        is_tied = model.model.config.get_text_config(decoder=True).tie_word_embeddings
        self._tied = model.model.get_input_embeddings().weight if is_tied else None

    @property
    def device(self) -> torch.device:
        """The device of the output embedding."""
        return cast(torch.device, next(self.head.parameters()).device)

    @property
    def vocabulary(self) -> int:
        """The width of the logits."""
        return int(self.head.out_features)

    def weight(self) -> Tensor:
        """The output embedding [vocabulary, hidden] in the dtype of the model. A head that is laid out for the
        processor's kernels, and shares no weight with the embedding, is copied for each call."""
        if isinstance(self.head, PackedLinear) and self._tied is not None:
            return cast(Tensor, self._tied)
        return cast(Tensor, self.head.weight)

    @cached_property
    def mean_row(self) -> Tensor:
        """The mean of the rows of the output embedding, float32 [hidden]."""
        return _mean_row(self.weight())

    def row(self, token: int) -> Tensor:
        """The row of a token in the output embedding, float32 [hidden]."""
        return self.weight()[token].float()

    def logits(self, stream: Tensor) -> Tensor:
        """The logits [..., vocabulary] in float32 of the stream behind the last layer [..., hidden]."""
        logits = self.uncapped(stream)
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap

    def uncapped(self, stream: Tensor) -> Tensor:
        """The logits [..., vocabulary] in float32 before their softcap."""
        return cast(Tensor, self.head(self._normalised(stream)).float() * self.scale)

    def precise_logits(self, stream: Tensor) -> Tensor:
        """The logits [n, vocabulary] of the stream behind the last layer [n, hidden], computed in float32."""
        read = stream.to(self.device, torch.float32)
        if self.norm is not None:
            with own_code(self.norm), truth.in_float32(self.norm):
                read = self.norm(read)
        bias = getattr(self.head, "bias", None)
        weight, parts = self.weight(), []
        step = max(1, BLOCK_ELEMENTS // weight.shape[1])
        for first in range(0, len(weight), step):
            own = None if bias is None else bias[first : first + step].float()
            parts.append(functional.linear(read, weight[first : first + step].float(), own))
        logits = torch.cat(parts, -1) * self.scale
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap

    def factor(self, stream: Tensor) -> Tensor:
        """What the norm multiplies `pull` of each stream [n, hidden] by, float32 [n, 1]: 1 over the length by which it
        divides. Half the difference of its outputs for a stream and for its negative has no bias in it."""
        if self.norm is None:
            return torch.ones(len(stream), 1, device=self.device)
        odd = (self._normalised(stream).float() - self._normalised(-stream).float()) / 2
        pulled = self.pull(stream)
        # a stream without any length is multiplied by 0 here, as its direction has no meaning
        squared = pulled.square().sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        return (odd * pulled).sum(-1, keepdim=True) / squared

    def pushed(self, rows: Tensor) -> Tensor:
        """The adjoint of `pull`: for rows w [..., hidden] of the head the float32 [..., hidden] whose inner product
        with a direction d is that of w with `pull(d)`."""
        gained = rows.to(self.device, torch.float32) * self.gain
        return gained - gained.mean(-1, keepdim=True) if self.is_centred else gained

    def _normalised(self, stream: Tensor) -> Tensor:
        """What the head reads of a stream [..., hidden], in the dtype of the head."""
        own = next(self.head.parameters())
        stream = stream.to(own.device, own.dtype)
        return stream if self.norm is None else cast(Tensor, self.norm(stream))

    def pull(self, directions: Tensor) -> Tensor:
        """Directions [n, hidden] of the stream as the head reads them, float32 [n, hidden]: the mean over the width off
        where the norm is centred, times the gain. The norm's division by the length of the stream is left out."""
        rows = directions.to(self.device, torch.float32)
        if self.is_centred:
            rows = rows - rows.mean(-1, keepdim=True)
        return rows * self.gain

    def scores(self, directions: Tensor) -> Iterator[tuple[int, Tensor]]:
        """What each direction [n, hidden] adds to the logits, the mean over the vocabulary taken off: float32
        [n, tokens] for blocks of the vocabulary, each after its first token. Scale and softcap are left out."""
        pulled, weight = self.pull(directions), self.weight()
        vocabulary, hidden = weight.shape
        mean = pulled @ self.mean_row
        block = min(
            BLOCK_ELEMENTS // max(hidden, len(pulled)), SLICE_PRODUCTS // max(1, pulled.numel())
        )
        block = max(1, block)
        for first in range(0, vocabulary, block):
            rows = weight[first : first + block].float()
            yield first, pulled @ rows.t() - mean[:, None]

    def extremes(self, directions: Tensor, k: int) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """In slices, the tokens that each direction [n, hidden] promotes most and suppresses most (see `scores`).

        Returns token ids (int64) and values (float32), each [n, 2, k']: the largest first, then the smallest first, of
        k' = min(k, vocabulary) tokens each. Equal values are in no fixed order.
        """
        found = []
        for some in directions.split(DIRECTIONS_AT_ONCE):
            found.append((yield from self._extremes(some, k)))
        tokens, values = zip(*found, strict=True)
        return torch.cat(tokens), torch.cat(values)

    def _extremes(self, directions: Tensor, k: int) -> Generator[None, None, tuple[Tensor, Tensor]]:
        best: list[tuple[Tensor, Tensor]] = []
        for first, scores in self.scores(directions):
            signed = torch.stack([scores, -scores], dim=1)
            top = signed.topk(min(k, signed.shape[-1]), dim=-1)
            best.append((top.values, top.indices + first))
            yield
        values = torch.cat([values for values, _ in best], dim=-1)
        tokens = torch.cat([tokens for _, tokens in best], dim=-1)
        top = values.topk(min(k, values.shape[-1]), dim=-1)
        signs = torch.tensor([1.0, -1.0], device=values.device)[:, None]
        return tokens.gather(-1, top.indices), top.values * signs


class LogitDifference:
    """The logit of `target` less that of `against`, or less the mean over the vocabulary where that is None."""

    def __init__(self, unembedding: Unembedding, target: int, against: int | None) -> None:
        self.target = target
        self.against = against
        self._model = unembedding

    def compute(self, logits: Tensor) -> float:
        """The difference in logits [vocabulary]."""
        other = logits.mean() if self.against is None else logits[self.against]
        return float(logits[self.target] - other)

    def read(self, stream: Tensor) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """In parts, the difference [n] for the stream behind the last layer [n, hidden] in float32, and its gradient
        [n, hidden]."""
        stream = stream.to(self._model.device)
        with torch.inference_mode(False), torch.enable_grad():
            leaf = stream.detach().clone().requires_grad_()
            read = leaf
            if self._model.norm is not None:
                with own_code(self._model.norm), truth.Differentiable():
                    read = self._model.norm(leaf)
        normalised = read.detach()
        found, slope = self._logit(normalised, self.target)
        if self.against is not None:
            other, its = self._logit(normalised, self.against)
        elif self._model.softcap is None:
            other, its = self._product(normalised, self._model.mean_row, self._bias.mean())
        else:
            other, its = yield from self._mean(normalised)
        with torch.inference_mode(False), torch.enable_grad():
            (gradient,) = torch.autograd.grad(read, leaf, (slope - its).clone())
        yield
        return found - other, gradient

    @cached_property
    def _bias(self) -> Tensor:
        """The bias of the output embedding, float32 [vocabulary], or one 0."""
        bias = getattr(self._model.head, "bias", None)
        return torch.zeros(1, device=self._model.device) if bias is None else bias.float()

    @cached_property
    def _rows(self) -> dict[int, Tensor]:
        tokens = {self.target} if self.against is None else {self.target, self.against}
        return {token: self._model.row(token) for token in tokens}

    def _product(self, normalised: Tensor, row: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scale = self._model.scale
        return (normalised @ row + bias) * scale, (row * scale).expand_as(normalised)

    def _logit(self, normalised: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """The logit [n] of a token, and its gradient [n, hidden] by what the head reads."""
        bias = self._bias[token if len(self._bias) > 1 else 0]
        logit, slope = self._product(normalised, self._rows[token], bias)
        cap = self._model.softcap
        if cap is None:
            return logit, slope
        bent = torch.tanh(logit / cap)
        return bent * cap, slope * (1 - bent.square())[:, None]

    def _mean(self, normalised: Tensor) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """As `_logit`, for the mean over the vocabulary of logits with a softcap, in blocks of the vocabulary."""
        cap, scale, weight = self._model.softcap, self._model.scale, self._model.weight()
        assert cap is not None
        total, slope = torch.zeros(len(normalised)), torch.zeros_like(normalised)
        total = total.to(normalised.device)
        step = max(1, BLOCK_ELEMENTS // max(weight.shape[1], len(normalised)))
        for first in range(0, len(weight), step):
            rows = weight[first : first + step].float()
            bias = self._bias[first : first + step] if len(self._bias) > 1 else self._bias
            bent = torch.tanh((normalised @ rows.t() + bias) * scale / cap)
            total += bent.sum(-1) * cap
            slope += (1 - bent.square()) @ rows * scale
            yield
        return total / len(weight), slope / len(weight)


def _mean_row(weight: Tensor) -> Tensor:
    """The mean of the rows of a matrix, float32, summed in blocks."""
    step = max(1, BLOCK_ELEMENTS // weight.shape[1])
    parts = [
        weight[first : first + step].float().sum(0, dtype=torch.float64)
        for first in range(0, weight.shape[0], step)
    ]
    return (torch.stack(parts).sum(0) / weight.shape[0]).float()


def _final_norm(model: nn.Module, layers: int) -> nn.Module | None:
    """The last norm beside the list of layers, in the module that holds the list."""
    path, _ = decoder_layers(model, layers)
    trunk = model.get_submodule(path.rpartition(".")[0])
    norms = [child for child in trunk.children() if "norm" in type(child).__name__.lower()]
    return norms[-1] if norms else None


@torch.inference_mode()
def _linear_part(norm: nn.Module | None, width: int, device: torch.device) -> tuple[Tensor, bool]:
    """The gain of a norm, float32 [width], and whether the norm is centred. The norm itself is tried with streams
    whose normalised form is known, so that every architecture's own form of its weight counts."""
    if norm is None:
        return torch.ones(width, device=device), False
    tried = copy.deepcopy(norm).to(device).float()

    def odd(stream: Tensor) -> Tensor:
        """Half the difference between the outputs of a stream and of its negative, which has no bias in it."""
        return (_plain(tried, stream) - _plain(tried, -stream)) / 2

    even = torch.full((1, width), _PROBE, device=device)
    stream = even.clone()
    stream[:, 1::2] *= -1
    is_centred = bool(odd(even).abs().max() <= 1e-3 * odd(stream).abs().max())
    if is_centred:
        normalised = (stream - stream.mean()) / stream.std(unbiased=False)
    else:
        normalised = stream / stream.square().mean().sqrt()
    return (odd(stream) / normalised)[0].float(), is_centred


def _plain(module: nn.Module, stream: Tensor) -> Tensor:
    """The module's own computation, without what libraries put around it to move tensors between devices."""
    return cast(Tensor, type(module).forward(module, stream))


def _constants(model: PreTrainedModel) -> tuple[float, float | None]:
    """The scale and the softcap of the logits, where the architectures have them."""
    config = model.config.get_text_config(decoder=True)
    scale = float(getattr(model, "logit_scale", None) or 1.0)  # Cohere
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)  # Granite
    scale *= float(getattr(config, "lm_head_multiplier", None) or 1.0)  # Falcon H1
    softcap = getattr(config, "final_logit_softcapping", None)  # Gemma
    softcap = softcap or getattr(config, "logits_soft_cap", None)  # RecurrentGemma
    return scale, None if softcap is None else float(softcap)
