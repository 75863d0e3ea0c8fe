"""Linear layers on the processor whose weights are laid out for its matrix kernels once, at the load.

A plain product lays out its weight again in each call, which takes most of a pass over few rows. The usual kernels are
those of oneDNN. On processors with AVX-512, their product of two rows or more also gives each row the same bits,
however many rows and threads take part. Where there is a compiler, its kernels take their place (`PanelWeight`), except
for bfloat16 where oneDNN uses instructions that they do not use (AMX). Where both are missing, which is for half
precision without a compiler and without AVX-512, those of FBGEMM hold a weight as float16 numbers and compute in
float32 (`HalfWeight`).

Layers that bitsandbytes holds in 8 or 4 bits are packed where the compiled product is there (`coded.py`). Other
quantized layers are never packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
import torch
from torch import ScriptObject, Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from steerserve.worker import memory
from steerserve.worker.model import native
from steerserve.worker.model.coded import CodedWeight, Codes, is_library_layer

log = structlog.get_logger(__name__)

_TIED_SHARE = 8
"""A weight that is also the token embedding is held twice once it is packed. It is packed where the copy takes at most
one part in this many of the free memory."""

_BLOCK_ELEMENTS = 1 << 25
"""The most numbers of a weight that are widened to float32 at once while it is laid out for FBGEMM."""

_LARGEST_EXPONENT = 15
"""The largest number of a `HalfWeight` is below 2 to this power, and not below half of it."""

_WHOLE_ROWS = 3
"""FBGEMM's kernels for AVX2 take up to 6 rows. Those for 1 and 2 rows sum in another order than those for 3 to 6, and
the rows that are left after blocks of 6 are never 1 or 2 where the number of rows is a multiple of this."""

_READ_THE_SAME = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers of a module that read the same rows."""

_LIBRARY_STATE = ("state", "quant_state")
"""What bitsandbytes keeps in a layer beside its weight."""

_BLOCKS = range(64, 0, -8)
"""The lengths of the blocks in which a product of float32 is summed. The first that divides the width is taken. A sum
in blocks rounds less than one from front to end."""

_WRONG = 1e-3
"""The difference of two products, as a part of their length, that no order of sums in float32 makes."""

_HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines

_lay_out = torch.ops.mkldnn._reorder_linear_weight
_product = torch.ops.mkldnn._linear_pointwise
_lay_out_half = torch.ops.quantized.linear_prepack_fp16.default
# without a search for tensors of other kinds in its arguments, which takes as long as a small product
_half_product = torch.ops.quantized.linear_dynamic_fp16.default._op


@dataclass(frozen=True)
class HalfWeight(memory.Native):
    """A weight [out, in] in the layout of FBGEMM, as float16 numbers.

    The weight is divided by a power of two, so that float16 has room for its numbers: numbers of bfloat16 are held
    exactly down to 2^-31 of the largest, and smaller ones within 2^-39 of it. Float32, in which the products are
    summed, rounds by more.

    Attributes:
        blocks: parts of the rows, one after the other.
        scale: float32 [1], what the weight was divided by.
        dtype: the dtype of the weight that was laid out.
    """

    blocks: tuple[ScriptObject, ...]
    scale: Tensor
    dtype: torch.dtype

    @classmethod
    def pack(cls, weight: Tensor, *, is_exact: bool = False) -> HalfWeight | None:
        """The weight [out, in] in this layout; None where a number of it is not finite, or, with `is_exact`, where
        float16 has no room for one of its numbers."""
        largest = weight.abs().amax().float()[None]
        if not bool(largest.isfinite()):
            return None
        exponent = (largest.frexp().exponent - _LARGEST_EXPONENT).clamp_min(-126)
        scale = torch.ldexp(torch.ones(1), exponent)
        step = max(1, _BLOCK_ELEMENTS // weight.shape[1])
        if is_exact and not _fits(weight, scale):
            return None
        blocks = tuple(_lay_out_half(part.float() / scale, None) for part in weight.split(step))
        return cls(weight.numel() * 2, blocks, scale, weight.dtype)

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """`rows` [..., in] times the weight, plus the bias, as [..., out] in the dtype of the rows. With the kernels
        for AVX2 the bits of a row do not depend on the other rows."""
        width, count = rows.shape[-1], rows.shape[0]
        # a decode pass has rows [rows, 1, in], which need no other shape
        flat = rows if rows.dim() > 1 and rows.numel() == count * width else rows.reshape(-1, width)
        count = flat.shape[0]
        # times a tensor of one number, rows become float32 by the same call
        wide = (flat.expand(_WHOLE_ROWS, *flat.shape[1:]) if count == 1 else flat) * self.scale
        missing = -wide.shape[0] % _WHOLE_ROWS
        if missing:
            wide = torch.cat([wide, wide[:missing]])
        products = [_half_product(wide, block) for block in self.blocks]
        found = products[0] if len(products) == 1 else torch.cat(products, -1)
        if wide.shape[0] > count:
            found = found[:count]
        if bias is not None:
            found += bias
        found = found.to(rows.dtype)
        return found if flat is rows else found.view(*rows.shape[:-1], -1)

    def to_dense(self) -> Tensor:
        """The weight [out, in] in its usual layout and dtype."""
        parts = [torch.ops.quantized.linear_unpack_fp16(block)[0] for block in self.blocks]
        return (torch.cat(parts) * self.scale).to(self.dtype)


@dataclass(frozen=True)
class PanelWeight(memory.Native):
    """A weight [out, in] in the layout of the compiled kernels.

    Attributes:
        panels: as `Kernels.panels` makes them. Those of a weight in float32 are float16 where all its numbers fit.
        width: the number of outputs.
        dtype: the dtype of the weight that was laid out, and of the rows.
        kernels: the compiled kernels.
        struct: what the compiled functions read, without a bias.
    """

    panels: Tensor
    width: int
    dtype: torch.dtype
    kernels: native.Kernels
    struct: native.Weight = field(repr=False)

    def __deepcopy__(self, _: object) -> PanelWeight:
        return self  # the struct points to these panels

    @classmethod
    def pack(cls, weight: Tensor) -> PanelWeight | None:
        """The weight [out, in] in this layout; None where there are no compiled kernels for it."""
        kernels = native.kernels()
        if kernels is None or weight.dtype not in (torch.bfloat16, torch.float32):
            return None
        is_short = weight.dtype == torch.float32 and _fits(weight)
        panels = kernels.panels(weight.half() if is_short else weight)
        if panels is None:
            return None
        width, size = weight.shape
        each = next(each for each in _BLOCKS if size % each == 0)
        form = native.FORMS[panels.dtype]
        struct = native.Weight(panels.data_ptr(), None, None, None, size, width, each, form)
        return cls(panels.nbytes, panels, width, weight.dtype, kernels, struct)

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """`rows` [..., in] times the weight, plus the bias, as [..., out] in the dtype of the rows. The bits of a row
        do not depend on the other rows."""
        if rows.dtype == self.dtype and (bias is None or bias.dtype == self.dtype):
            return self.kernels.multiply(rows, self.struct, bias)
        return functional.linear(rows, self.to_dense().to(rows.dtype), bias)

    def to_dense(self) -> Tensor:
        """The weight [out, in] in its usual layout and dtype."""
        whole = self.panels.transpose(1, 2).reshape(-1, int(self.struct.size))
        return whole[: self.width].to(self.dtype, copy=True)


def _pack_otherwise(weight: Tensor) -> HalfWeight | PanelWeight | None:
    """A weight for rows of its own dtype, in a layout other than that of oneDNN. None where there is none, where a
    number of it would change although oneDNN multiplies it as it is, and where oneDNN's kernels come before those of
    FBGEMM."""
    panels = PanelWeight.pack(weight)
    if panels is not None and not _is_right(panels, weight):
        log.error("compiled_product_wrong", width=panels.width, size=weight.shape[1])
        panels = None
    has_others = weight.dtype != torch.float16 and _has_kernels(torch.bfloat16)
    if panels is not None or has_others:
        return panels
    return HalfWeight.pack(weight, is_exact=_has_kernels(weight.dtype))


def _is_right(panels: PanelWeight, weight: Tensor) -> bool:
    """Whether the compiled product of a weight in float32 is that of the library, up to rounding. The check of a whole
    model sees a wrong product in half precision, where float32 is computed from the weights themselves."""
    if weight.dtype != torch.float32:
        return True
    rows = torch.linspace(-1.0, 1.0, 2 * weight.shape[1]).view(2, -1)
    own = functional.linear(rows, weight)
    return bool((panels.multiply(rows, None) - own).norm() <= _WRONG * own.norm())


NativeWeight = HalfWeight | PanelWeight | CodedWeight
"""A packed weight that is no tensor."""


@dataclass(slots=True, eq=False)
class Joint:
    """The weights of layers that read the same rows, one below the other, and their biases. `products` are those of
    `rows`, until the last layer has taken its own."""

    weight: NativeWeight
    sizes: list[int]
    bias: Tensor | None
    rows: Tensor | None = None
    products: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class JointPart:
    """The weight of one layer of a `Joint`. The first layer that is called with some rows multiplies them for all
    layers of the joint: a call of the kernels takes as long as the product of a small weight with one row."""

    joint: Joint
    place: int

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """As the joint's weight multiplies, with the same bits. The joint has the bias already."""
        joint = self.joint
        if self.place == 0 or joint.rows is not rows:
            found = joint.weight.multiply(rows, joint.bias)
            joint.rows, joint.products = rows, found.split_with_sizes(joint.sizes, -1)
        product = joint.products[self.place]
        if self.place == len(joint.sizes) - 1:
            joint.rows, joint.products = None, ()
        return product

    def to_dense(self) -> Tensor:
        """The weight [out, in] in its usual layout and dtype."""
        parts = torch.split(self.joint.weight.to_dense(), self.joint.sizes)
        return parts[self.place]


Packed = Tensor | NativeWeight | JointPart
"""A weight [out, in] in the layout of the kernels of oneDNN, of FBGEMM, or of the compiled ones."""


class PackedLinear(nn.Linear):
    """A linear layer that holds its weight [out_features, in_features] in the layout of the kernels, as `packed`."""

    packed: Packed

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight in its usual layout, for code that reads the weight itself."""
        return self.packed.to_dense()

    def forward(self, input: Tensor) -> Tensor:
        return multiply(input, self.packed, self.bias)


class PackedConv1D(Conv1D):
    """GPT-2's linear layer, whose weight [nx, nf] is held as [nf, nx] in the layout of the kernels, as `packed`."""

    packed: Packed

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight in its usual layout, for code that reads the weight itself."""
        return self.packed.to_dense().t()

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.packed, self.bias)


def laid_out(weight: Tensor, rows: torch.dtype) -> Packed | None:
    """The weight [out, in] in the layout of the kernels that multiply it with rows of the dtype `rows`; None where it
    is not on the host, or where there are no such kernels."""
    if weight.device.type != "cpu":
        return None
    if weight.dtype != rows:
        return HalfWeight.pack(weight) if _is_half(weight.dtype) else None
    held = _pack_otherwise(weight) if _may_pack_otherwise(rows) else None
    if held is None and _has_kernels(rows):
        return cast(Tensor, _lay_out(weight, None))
    return held


def together(layers: Sequence[Any], rows: Tensor) -> Tensor | None:
    """The products of layers that read the same rows [..., in], one beside the other; None where these layers are not
    all that share a weight, or where something hooks one of them."""
    first = getattr(layers[0], "packed", None)
    if not isinstance(first, JointPart) or len(first.joint.sizes) != len(layers):
        return None
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return None
    return first.joint.weight.multiply(rows, first.joint.bias)


def multiply(rows: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """`rows` [..., in] times a weight that is laid out, plus the bias, as [..., out]. Rows in float32 are multiplied in
    float32, whatever the weight is."""
    if isinstance(packed, Tensor):
        if rows.dtype != packed.dtype:
            return functional.linear(rows, packed.to_dense().to(rows.dtype), bias)
        return cast(Tensor, _product(rows, packed, bias, "none", [], ""))
    return packed.multiply(rows, bias)


def pack_codes(model: nn.Module, dtype: torch.dtype) -> int:
    """Pack the linear layers that bitsandbytes holds in 8 or 4 bits, for rows of this dtype, and return how many were
    packed. Hooks on a layer stay. Without compiled functions there are none."""
    packed = 0
    for module in model.modules():
        for names in _READ_THE_SAME:
            packed += _pack_joint_codes([getattr(module, name, None) for name in names], dtype)
    for layer in model.modules():
        packed += _pack_joint_codes([layer], dtype)
    return packed


def pack_head(model: PreTrainedModel, dtype: torch.dtype, free: Callable[[], int]) -> bool:
    """Hold the output embedding in 8 bits, where it is plain and there are compiled functions; return whether it is
    held so. One that is also the token embedding is held a second time, under the same condition as in `pack`."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or not _is_on_host(head):
        return False
    is_shared = head.weight is model.get_input_embeddings().weight
    if is_shared and head.weight.numel() * _TIED_SHARE > free():
        return False
    codes = Codes.rounded(head.weight.data)
    weight = CodedWeight.pack(codes, dtype) if codes is not None else None
    if weight is None:
        return False
    _hold(head, weight, dtype)
    return True


def pack(model: nn.Module, free: Callable[[], int]) -> int:
    """Pack the linear layers of a loaded model in place, and return how many were packed. Hooks on a layer stay.

    `free` returns the number of bytes that can still be allocated on the host.
    """
    holders = Counter(id(held) for _, held in model.named_parameters(remove_duplicate=False))
    packed = 0
    for module in model.modules():
        for names in _READ_THE_SAME:
            packed += _pack_joint([getattr(module, name, None) for name in names])
    for layer in model.modules():
        if not _may_pack(layer):
            continue
        weight = cast(nn.Parameter, layer.weight)
        is_shared = holders[id(weight)] > 1
        if is_shared and weight.nbytes * _TIED_SHARE > free():
            continue
        packed += _pack(layer, weight)
    return packed


def native_weights(model: nn.Module) -> Iterator[NativeWeight]:
    """The packed weights of a model that are no parameters."""
    for layer in model.modules():
        held = getattr(layer, "packed", None)
        if isinstance(held, NativeWeight):
            yield held
        elif isinstance(held, JointPart) and held.place == 0:
            yield held.joint.weight


def _pack_joint(layers: Sequence[object]) -> int:
    """Pack layers that read the same rows as one weight, where all of them can be; return how many were."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear) and _may_pack(layer)]
    weights = [layer.weight.data for layer in linear]
    biases: list[Tensor] = [layer.bias for layer in linear if layer.bias is not None]
    if len(linear) < len(layers) or len(biases) not in (0, len(layers)):
        return 0
    dtype = weights[0].dtype
    if not _may_pack_otherwise(dtype):
        return 0
    weight = _pack_otherwise(torch.cat(weights))
    if weight is None:
        return 0
    sizes = [layer.out_features for layer in linear]
    joint = Joint(weight, sizes, torch.cat(biases) if biases else None)
    for place, layer in enumerate(linear):
        _hold(layer, JointPart(joint, place), dtype)
    return len(linear)


def _pack_joint_codes(layers: Sequence[object], dtype: torch.dtype) -> int:
    """Pack layers that read the same rows as one `CodedWeight`, or one layer alone; return how many were packed."""
    linear = [layer for layer in layers if is_library_layer(layer) and _is_on_host(layer)]
    codes = [own for layer in linear if (own := Codes.of_layer(layer)) is not None]
    biases: list[Tensor] = [layer.bias.data.to(dtype) for layer in linear if layer.bias is not None]
    if len(codes) < len(layers) or len(biases) not in (0, len(layers)):
        return 0
    joined = Codes.joined(codes)
    weight = CodedWeight.pack(joined, dtype) if joined is not None else None
    if weight is None:
        return 0
    sizes = [layer.out_features for layer in linear]
    joint = Joint(weight, sizes, torch.cat(biases) if biases else None)
    for place, layer in enumerate(linear):
        if biases:
            layer.bias.data = biases[place]
        for name in _LIBRARY_STATE:
            vars(layer).pop(name, None)
        _hold(layer, weight if len(linear) == 1 else JointPart(joint, place), dtype)
    return len(linear)


def _is_on_host(layer: nn.Linear) -> bool:
    """Whether a layer is on the host, and has the function of its kind."""
    return layer.weight.device.type == "cpu" and "forward" not in vars(layer)


def _may_pack(layer: nn.Module) -> bool:
    """Whether this is a plain linear layer on the host, in a dtype for which the processor has kernels."""
    if type(layer) not in (nn.Linear, Conv1D) or "forward" in vars(layer):
        return False
    weight = layer.weight
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and can_pack(weight.dtype)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether there are kernels for a weight of this dtype on this processor."""
    return _has_kernels(dtype) or _is_half(dtype)


def _has_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _may_pack_otherwise(dtype: torch.dtype) -> bool:
    """Whether a weight of this dtype may be held in a layout other than that of oneDNN."""
    if not _has_kernels(dtype):
        return _is_half(dtype)
    return _multiplies_faster() if dtype == torch.bfloat16 else _may_pack_float32(dtype)


def _multiplies_faster() -> bool:
    """Whether passes in bfloat16 are faster with the compiled functions than with oneDNN (docs/decisions/0052). They
    were not compared on processors with instructions that oneDNN alone uses."""
    kernels = native.kernels()
    return kernels is not None and not kernels.leaves_instructions


def _is_half(dtype: torch.dtype) -> bool:
    """Whether FBGEMM multiplies weights of this dtype on this processor."""
    return _HAS_FBGEMM and dtype in (torch.bfloat16, torch.float16)


def _may_pack_float32(dtype: torch.dtype) -> bool:
    """Whether a weight of this dtype is one in float32 that may be held for the compiled kernels, which are faster over
    few rows (docs/decisions/0053), or for those of FBGEMM where float16 has room for its numbers. With AVX-512 oneDNN's
    kernels come before those of FBGEMM, for which it was not seen there that a row's bits do not depend on the other
    rows."""
    if dtype != torch.float32:
        return False
    return native.kernels() is not None or (_HAS_FBGEMM and not _has_kernels(torch.bfloat16))


def _fits(weight: Tensor, scale: Tensor | float = 1.0) -> bool:
    """Whether float16 has room for each number of a weight [out, in], divided by the scale."""
    parts = weight.split(max(1, _BLOCK_ELEMENTS // weight.shape[1]))
    return all(torch.equal((part / scale).half().to(part.dtype), part / scale) for part in parts)


def _pack(layer: nn.Module, weight: nn.Parameter) -> bool:
    """Replace the weight by its packed form; False where it has none."""
    is_linear = type(layer) is nn.Linear
    plain = weight.data if is_linear else weight.data.t().contiguous()
    packed = laid_out(plain, plain.dtype)
    if packed is None:
        return False
    _hold(layer, packed, plain.dtype)
    return True


def _hold(layer: nn.Module, packed: Packed, dtype: torch.dtype) -> None:
    """Have a layer hold its packed weight, for rows of this dtype, in place of the plain one."""
    del layer.weight
    layer.__class__ = PackedLinear if isinstance(layer, nn.Linear) else PackedConv1D
    if isinstance(packed, Tensor):
        packed = nn.Parameter(packed, requires_grad=False)
    else:  # for code that asks a module for the device or the dtype of its parameters
        layer.like = nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
    cast(PackedLinear, layer).packed = packed
