"""Linear layers on the processor whose weights are laid out for its matrix kernels once, at the load.

A plain product lays out its weight again in each call, which takes most of a pass over few rows. On processors with
AVX-512, the packed product of two rows or more also gives each row the same bits, however many rows and threads take
part. Only floating-point weights of plain layers are packed, never quantized ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_TIED_SHARE = 8
"""A weight that is also the token embedding is held twice once it is packed. It is packed where the copy takes at most
one part in this many of the free memory."""

_lay_out = torch.ops.mkldnn._reorder_linear_weight
_product = torch.ops.mkldnn._linear_pointwise


class PackedLinear(nn.Linear):
    """A linear layer that holds its weight [out_features, in_features] in the layout of the kernels, as `packed`."""

    packed: nn.Parameter

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight in its usual layout, for code that reads the weight itself."""
        return self.packed.to_dense()

    def forward(self, input: Tensor) -> Tensor:
        return multiply(input, self.packed, self.bias)


class PackedConv1D(Conv1D):
    """GPT-2's linear layer, whose weight [nx, nf] is held as [nf, nx] in the layout of the kernels, as `packed`."""

    packed: nn.Parameter

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight in its usual layout, for code that reads the weight itself."""
        return self.packed.to_dense().t()

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.packed, self.bias)


def laid_out(weight: Tensor) -> Tensor | None:
    """The weight [out, in] in the layout of the kernels; None where it is not on the host, or where the processor has
    no kernels for its dtype."""
    if weight.device.type != "cpu" or not _has_kernels(weight.dtype):
        return None
    return cast(Tensor, _lay_out(weight, None))


def multiply(rows: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows` [..., in] times a weight that is laid out, plus the bias, as [..., out]."""
    return cast(Tensor, _product(rows, packed, bias, "none", [], ""))


def pack(model: nn.Module, free: Callable[[], int]) -> int:
    """Pack the linear layers of a loaded model in place, and return how many were packed. Hooks on a layer stay.

    `free` returns the number of bytes that can still be allocated on the host.
    """
    holders = Counter(id(held) for _, held in model.named_parameters(remove_duplicate=False))
    packed = 0
    for layer in model.modules():
        if not _may_pack(layer):
            continue
        weight = cast(nn.Parameter, layer.weight)
        is_shared = holders[id(weight)] > 1
        if is_shared and weight.nbytes * _TIED_SHARE > free():
            continue
        _pack(layer, weight)
        packed += 1
    return packed


def _may_pack(layer: nn.Module) -> bool:
    """Whether this is a plain linear layer on the host, in a dtype for which the processor has kernels."""
    if type(layer) not in (nn.Linear, Conv1D) or "forward" in vars(layer):
        return False
    weight = layer.weight
    return (
        type(weight) is nn.Parameter and weight.device.type == "cpu" and _has_kernels(weight.dtype)
    )


def _has_kernels(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _pack(layer: nn.Module, weight: nn.Parameter) -> None:
    is_linear = type(layer) is nn.Linear
    plain = weight.data if is_linear else weight.data.t().contiguous()
    del layer.weight
    layer.__class__ = PackedLinear if is_linear else PackedConv1D
    layer.packed = nn.Parameter(_lay_out(plain, None), requires_grad=False)
