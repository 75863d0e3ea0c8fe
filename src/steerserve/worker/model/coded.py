"""Weights of 8 and 4 bits on the processor, in the layout of the compiled product.

bitsandbytes quantizes a weight, or reads a checkpoint that it has quantized. Its own products on a processor round the
rows to 8 bits (LLM.int8), or make the whole weight plain in each call. The compiled product widens the codes where it
reads them, and takes the rows as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from steerserve.worker import memory
from steerserve.worker.model import native

_PANEL, _LANES = 16, 8
_STEP = 4
"""Numbers of `in` whose codes of 4 bits lie together."""
_LARGEST = 127
_LARGEST_OF_TABLE = 32767
_WIDENED = 65536
"""By how much the compiled product multiplies the integers of a table."""
_BLOCK_ELEMENTS = 1 << 22
"""The most numbers of a plain weight that are widened to float32 at once."""
_NAMES = frozenset({"Linear8bitLt", "Linear4bit"})


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized weight [out, in]: each number is its code, or the number of the table at the place of its code, times
    a scale.

    Attributes:
        codes: int8 [out, in]; with a table uint8 [out, in], places in the table.
        scales: float32 [out, blocks]; in / blocks numbers share a scale.
        table: float32 [16], numbers from -1 to 1; None for codes of 8 bits.
    """

    codes: Tensor
    scales: Tensor
    table: Tensor | None = None

    @classmethod
    def rounded(cls, weight: Tensor) -> Codes | None:
        """A plain weight [out, in], rounded to 8 bits with a scale for each output; None where a number is not
        finite."""
        codes = torch.empty(weight.shape, dtype=torch.int8)
        scales = torch.empty(weight.shape[0], 1)
        step = max(1, _BLOCK_ELEMENTS // weight.shape[1])
        for first in range(0, len(codes), step):
            part = weight[first : first + step].float()
            largest = part.abs().amax(1, keepdim=True)
            if not bool(largest.isfinite().all()):
                return None
            own = largest / _LARGEST
            scales[first : first + step] = own
            codes[first : first + step] = (part / own.clamp_min(2.0**-126)).round()
        return cls(codes, scales)

    @classmethod
    def of_layer(cls, layer: nn.Module) -> Codes | None:
        """The weight of a linear layer of bitsandbytes on the host; None for one whose blocks go over the ends of its
        rows."""
        weight: Any = layer.weight
        state = getattr(weight, "quant_state", None)
        if state is not None:
            return _of_four_bits(weight.data, state)
        scales = getattr(weight, "SCB", None)
        if scales is None or weight.dtype != torch.int8:
            return None
        return cls(weight.data, scales.float()[:, None] / _LARGEST)

    def plain(self) -> Tensor:
        """The numbers that the codes stand for, float32 [out, in]."""
        numbers = self.codes.float() if self.table is None else self.table[self.codes.long()]
        blocks = numbers.view(len(numbers), self.scales.shape[1], -1)
        return (blocks * self.scales[:, :, None]).view(numbers.shape)

    @classmethod
    def joined(cls, parts: Sequence[Codes]) -> Codes | None:
        """Weights that read the same rows, one below the other; None where their codes mean different things."""
        first = parts[0]
        for each in parts[1:]:
            if each.scales.shape[1] != first.scales.shape[1] or not _is_same(
                each.table, first.table
            ):
                return None
        codes = torch.cat([each.codes for each in parts])
        return cls(codes, torch.cat([each.scales for each in parts]), first.table)


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _of_four_bits(packed: Tensor, state: Any) -> Codes | None:
    """A weight of 4 bits, whose blocks follow each other through its rows (Dettmers et al. 2023, arXiv:2305.14314).
    Where the scales are quantized too, they are widened."""
    width, size = state.shape
    if size % state.blocksize:
        return None
    pairs = packed.view(torch.uint8).reshape(width, size // 2)
    codes = torch.stack([pairs >> 4, pairs & 15], -1).view(width, size)
    scales = state.absmax.float()
    if state.nested:
        blocks = state.state2.absmax.float().repeat_interleave(state.state2.blocksize)
        scales = state.state2.code[state.absmax.long()] * blocks[: scales.numel()] + state.offset
    return Codes(codes, scales.view(width, -1), state.code.float())


@dataclass(frozen=True)
class CodedWeight(memory.Native):
    """A weight [out, in] of 8 or 4 bits in the layout of the compiled product.

    Attributes:
        panels: 16 outputs in each: int8 [panels, in, 16], or uint8 [panels, in / 4, 32] for codes of 4 bits.
        scales: float32 [panels, blocks, 16]; with a table those of `_WIDENED` times an integer.
        table: uint8 [2, 16], the low and the high bytes of 16-bit integers; None for codes of 8 bits.
        width: the number of outputs.
        dtype: the dtype of the rows and of the plain weight.
        kernels: the compiled functions.
        struct: what the compiled functions read, without a bias.
    """

    panels: Tensor
    scales: Tensor
    table: Tensor | None
    width: int
    dtype: torch.dtype
    kernels: native.Kernels
    struct: native.Weight = field(repr=False)

    def __deepcopy__(self, _: object) -> CodedWeight:
        return self  # the struct points to these panels

    @classmethod
    def pack(cls, codes: Codes, dtype: torch.dtype) -> CodedWeight | None:
        """The weight in this layout, for rows of this dtype; None where there is no compiled product for it."""
        kernels = native.kernels()
        width, size = codes.codes.shape
        each = size // codes.scales.shape[1]
        if kernels is None or size % _LANES or (codes.table is not None and each % _STEP):
            return None
        panels = _in_panels(codes.codes)
        panels = panels.contiguous() if codes.table is None else _paired(panels)
        scales, table = _in_panels(codes.scales).contiguous(), None
        if codes.table is not None:
            table = (codes.table * _LARGEST_OF_TABLE).round().to(torch.int16)
            table = table.view(torch.uint8).view(-1, 2).t().contiguous()
            scales /= _LARGEST_OF_TABLE * _WIDENED
        struct = native.Weight(
            panels.data_ptr(),
            scales.data_ptr(),
            None if table is None else table.data_ptr(),
            None,
            size,
            width,
            each,
            native.Form.CODE_OF_8 if table is None else native.Form.CODE_OF_4,
        )
        nbytes = panels.nbytes + scales.nbytes
        return cls(nbytes, panels, scales, table, width, dtype, kernels, struct)

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """`rows` [..., in] times the weight, plus the bias, as [..., out] in the dtype of the rows. The bits of a row
        do not depend on the other rows."""
        if rows.dtype == self.dtype and (bias is None or bias.dtype == self.dtype):
            return self.kernels.multiply(rows, self.struct, bias)
        return functional.linear(rows, self.plain().to(rows.dtype), bias)

    def to_dense(self) -> Tensor:
        """The weight [out, in] in its usual layout and in the dtype of the rows."""
        return self.plain().to(self.dtype)

    def plain(self) -> Tensor:
        """The numbers that the codes stand for, float32 [out, in]."""
        count, size = len(self.panels), int(self.struct.size)
        whole = torch.empty(count, _PANEL, size)
        step = max(1, _BLOCK_ELEMENTS // (_PANEL * size))
        for first in range(0, count, step):
            part = slice(first, first + step)
            whole[part] = self._widened(self.panels[part], self.scales[part])
        return whole.flatten(0, 1)[: self.width]

    def _widened(self, panels: Tensor, scales: Tensor) -> Tensor:
        """The numbers of some panels, float32 [panels, 16, in]."""
        if self.table is None:
            numbers = panels.float()
        else:
            table = self.table.t().contiguous().view(torch.int16).flatten().float() * _WIDENED
            numbers = table[_unpaired(panels).int()]
        count, blocks, _ = scales.shape
        numbers = numbers.view(count, blocks, -1, _PANEL) * scales[:, :, None]
        return numbers.view(count, -1, _PANEL).transpose(1, 2)


def is_library_layer(layer: object) -> TypeGuard[nn.Linear]:
    """Whether this is a linear layer of bitsandbytes."""
    return type(layer).__name__ in _NAMES


def rounds_rows(model: nn.Module) -> bool:
    """Whether a product of the model rounds its rows to 8 bits, as LLM.int8 does (Dettmers et al. 2022,
    arXiv:2208.07339): a row then depends on the other rows of its pass."""
    return any(type(module).__name__ == "Linear8bitLt" for module in model.modules())


def _in_panels(whole: Tensor) -> Tensor:
    """[out, n] as [panels, n, 16], with 0 for the outputs that are missing in the last panel."""
    width, size = whole.shape
    missing = -width % _PANEL
    if missing:
        whole = torch.cat([whole, whole.new_zeros(missing, size)])
    return whole.view(-1, _PANEL, size).transpose(1, 2)


def _paired(panels: Tensor) -> Tensor:
    """Codes of 4 bits [panels, in, 16] as [panels, in / 4, 32], in the order that `Four` of `weights.h` reads."""
    # by place in the byte, place in `in`, first or second half of the outputs, quarter of them, output
    parts = panels.reshape(len(panels), -1, 2, 2, 2, 2, 4).permute(2, 0, 1, 5, 3, 6, 4)
    return (parts[0] | parts[1] << 4).reshape(len(panels), -1, 2 * _PANEL)


def _unpaired(pairs: Tensor) -> Tensor:
    """The inverse of `_paired`."""
    parts = pairs.view(len(pairs), -1, 2, 2, 4, 2)
    codes = torch.stack([parts & 15, parts >> 4], 2)
    return codes.permute(0, 1, 2, 4, 6, 3, 5).reshape(len(pairs), -1, _PANEL)
