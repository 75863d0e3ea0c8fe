"""The precision at which a checkpoint is held. It follows from the request, the stored weights and this machine.

Tensors are known here by name, shape and stored dtype only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal

PACKAGES = frozenset(
    "bitsandbytes optimum gptqmodel compressed_tensors hqq torchao auto_round aqlm vptq spqr_quant "
    "flute fast_hadamard_transform fbgemm_gpu kernels triton".split()
)
"""Packages that read quantized checkpoints. `Machine.packages` has the installed ones."""

FP8_CAPABILITY = (8, 9)
MXFP4_CAPABILITY = (7, 5)

_WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_EIGHT_BIT_FLOATS = frozenset({"F8_E4M3", "F8_E5M2"})

BLOCK = 64
"""Values of a 4-bit weight that share one scale. A scale has 8 bits, and 256 scales share one float32."""

CODED = ("int8", "nf4", "fp4")
"""The names of the forms in 8 and 4 bits."""

ROWS = 32
"""Rows of a 4-bit weight that the host's kernel takes together."""

_CODEBOOKS = 4 * (16 + 256)

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d{1,6})\.")
_OTHER_TOWER = re.compile(r"(?:^|\.)(?:vision|visual|audio|image)")
_SCALES = re.compile(
    r"(_scales?|_scale_inv|_zero_point|_global_scale|_shape|_g_idx|\.activation_scale|\.k_scale|\.v_scale)$"
)


class Scheme(StrEnum):
    """How weights lie in memory."""

    PLAIN = "plain"
    INT8 = "int8"
    NF4 = "nf4"
    AS_STORED = "as_stored"
    EXPANDED = "expanded"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint; `dtype` as safetensors names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def layer(self) -> int | None:
        """The decoder (or encoder) layer of the tensor; None outside the layers and in vision and audio towers."""
        match = None if _OTHER_TOWER.search(self.name) else _LAYER.search(self.name)
        return int(match[1]) if match else None

    @property
    def is_linear(self) -> bool:
        """Whether the tensor is the weight of a linear module inside a layer. Only such weights are quantized to 8 or 4
        bits.

        Experts are stacked into one tensor while they load, and are not quantized.
        """
        return (
            len(self.shape) == 2
            and self.name.endswith(".weight")
            and self.dtype in _FLOATS
            and is_in_layer(self.name)
            and ".experts." not in self.name
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts of the machine that decide on a precision: whether there is a card, the lowest compute capability of
    the cards, the installed packages among PACKAGES, and whether there is a C++ compiler."""

    has_card: bool = False
    capability: tuple[int, int] | None = None
    packages: frozenset[str] = frozenset()
    has_compiler: bool = False

    def reaches(self, capability: tuple[int, int]) -> bool:
        return self.has_card and self.capability is not None and self.capability >= capability


@dataclass(frozen=True, slots=True)
class Held:
    """How the engine holds a checkpoint. `dtype` is the dtype of the arithmetic and of every tensor that is not
    quantized. `name` is for people. `quantizes` says that weights are quantized while they load. `is_packed` says that
    weights of 8 and 4 bits are laid out for compiled functions of the processor, and the output head with them, in 8
    bits."""

    name: str
    dtype: str
    scheme: Scheme
    is_packed: bool = False

    @property
    def width(self) -> int:
        """Bytes of an element that is not quantized."""
        return _WIDTH[self.dtype]

    @property
    def quantizes(self) -> bool:
        return self.scheme in (Scheme.INT8, Scheme.NF4)


@dataclass(frozen=True, slots=True)
class _Method:
    """A method by which checkpoints are quantized: the packages that read it, and whether it runs on cards only.
    `is_expanded` says that its weights become plain weights while they load."""

    packages: tuple[str, ...] = ()
    needs_card: bool = False
    is_expanded: bool = False


_METHODS = {
    "bitsandbytes": _Method(("bitsandbytes",)),
    "gptq": _Method(("optimum", "gptqmodel")),
    "awq": _Method(("gptqmodel",)),
    "compressed-tensors": _Method(("compressed_tensors",), is_expanded=True),
    "fp8": _Method(),
    "mxfp4": _Method(),
    "fbgemm_fp8": _Method(("fbgemm_gpu",), needs_card=True),
    "hqq": _Method(("hqq",)),
    "quanto": _Method(("optimum",)),
    "torchao": _Method(("torchao",)),
    "auto-round": _Method(("auto_round",)),
    "eetq": _Method(("kernels",), needs_card=True),
    "aqlm": _Method(("aqlm",)),
    "vptq": _Method(("vptq",), needs_card=True),
    "spqr": _Method(("spqr_quant",), needs_card=True),
    "higgs": _Method(("flute", "fast_hadamard_transform"), needs_card=True),
    "bitnet": _Method(),
}


def compute_dtype(stored: str | None, *, has_card: bool) -> str:
    """The dtype of the arithmetic. bfloat16 stays bfloat16. Other dtypes become float16 on a card, and float32 on a
    host, because a host computes no faster in float16."""
    if stored == "bfloat16":
        return "bfloat16"
    return "float16" if has_card else "float32"


def quantization_config(config: Mapping[str, object]) -> dict[str, object] | None:
    """The quantization in a checkpoint's configuration; None for a plain checkpoint."""
    for place in (config, config.get("text_config")):
        if not isinstance(place, Mapping):
            continue
        for key in ("quantization_config", "compression_config"):
            entry = place.get(key)
            if isinstance(entry, Mapping) and entry:
                return dict(entry)
    return None


def choose(
    asked: str, stored: str | None, quantized: Mapping[str, object] | None, machine: Machine
) -> Held:
    """How a checkpoint is held. `stored` is the dtype its configuration names, `quantized` its `quantization_config`.

    (1) A checkpoint that is already quantized loads at its own precision, whatever was asked. (2) Q2 is refused for
    every other checkpoint. (3) FP16 is the dtype of `compute_dtype`. (4) Q8 and Q4 quantize the linear weights of the
    layers while they load.

    Raises:
        Refusal: UNSUPPORTED_QUANTIZATION.
    """
    held = _chosen(asked, stored, quantized, machine)
    is_packed = held.name in CODED and machine.has_compiler and not machine.has_card
    return replace(held, is_packed=is_packed)


def _chosen(
    asked: str, stored: str | None, quantized: Mapping[str, object] | None, machine: Machine
) -> Held:
    dtype = compute_dtype(stored, has_card=machine.has_card)
    if quantized:
        return _of_method(asked, dtype, quantized, machine)
    if asked == "FP16":
        return Held(dtype, dtype, Scheme.PLAIN)
    if asked not in ("Q8", "Q4"):
        raise _refused(
            asked,
            f"{asked} needs a checkpoint that is already quantized; this one is plain. "
            "Register it as FP16, Q8 or Q4",
        )
    if "bitsandbytes" not in machine.packages:
        raise _refused(
            asked,
            f"{asked} needs the package bitsandbytes, which is not installed",
            missing=["bitsandbytes"],
        )
    scheme = Scheme.INT8 if asked == "Q8" else Scheme.NF4
    return Held(str(scheme), dtype, scheme)


def _of_method(asked: str, dtype: str, quantized: Mapping[str, object], machine: Machine) -> Held:
    named = str(quantized.get("quant_method") or "")
    if not named and (quantized.get("load_in_8bit") or quantized.get("load_in_4bit")):
        named = "bitsandbytes"
    method = _METHODS.get(named)
    if method is None:
        raise _refused(asked, f"checkpoints quantized by {named!r} are not served", method=named)
    missing = [name for name in method.packages if name not in machine.packages]
    if missing:
        raise _refused(
            asked,
            f"a checkpoint quantized by {named} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            method=named,
            missing=missing,
        )
    if method.needs_card and not machine.has_card:
        raise _refused(
            asked, f"a checkpoint quantized by {named} runs on a card only", method=named
        )
    if _is_expanded(named, method, machine):
        # these two become bfloat16, whichever dtype the configuration names
        target = "bfloat16" if named in ("fp8", "mxfp4") else dtype
        return Held(f"{named}->{target}", target, Scheme.EXPANDED)
    return Held(_own_name(named, quantized), dtype, Scheme.AS_STORED)


def _is_expanded(named: str, method: _Method, machine: Machine) -> bool:
    """Whether the weights become plain weights while they load."""
    if named == "fp8":
        return not machine.reaches(FP8_CAPABILITY)
    if named == "mxfp4":
        return not (machine.reaches(MXFP4_CAPABILITY) and {"kernels", "triton"} <= machine.packages)
    return method.is_expanded


def _own_name(named: str, quantized: Mapping[str, object]) -> str:
    if named != "bitsandbytes":
        return named
    if quantized.get("load_in_8bit"):
        return "int8"
    return str(quantized.get("bnb_4bit_quant_type") or "fp4")


def _refused(asked: str, message: str, **details: Any) -> Refusal:
    return Refusal("UNSUPPORTED_QUANTIZATION", message, quantization=asked, **details)


def is_in_layer(name: str) -> bool:
    """Whether a module or tensor lies in a layer, of any tower."""
    return _LAYER.search(f"{name}.") is not None


def fits_blocks(rows: int, columns: int) -> bool:
    """Whether a weight can be held in 4 bits. Other weights are not quantized."""
    return columns % BLOCK == 0 and rows % ROWS == 0


def held_bytes(tensor: StoredTensor, held: Held) -> int:
    """Bytes of a stored tensor after the load."""
    plain = tensor.count * held.width
    is_plain = tensor.dtype in _FLOATS or tensor.dtype in _EIGHT_BIT_FLOATS
    match held.scheme:
        case Scheme.INT8 if tensor.is_linear:
            return tensor.count + 4 * tensor.shape[0]
        case Scheme.NF4 if tensor.is_linear and fits_blocks(*tensor.shape):
            blocks = -(-tensor.count // BLOCK)
            if held.is_packed:  # the scales are widened
                return -(-tensor.count // 2) + 4 * blocks
            return -(-tensor.count // 2) + blocks + 4 * -(-blocks // 256) + _CODEBOOKS
        case Scheme.EXPANDED:
            return _expanded_bytes(tensor, held)
        case Scheme.AS_STORED:
            if held.is_packed and tensor.name.endswith(".absmax"):
                return 4 * tensor.count  # the scales are widened
            is_own = tensor.dtype in _FLOATS and tensor.name.endswith((".weight", ".bias"))
            return plain if is_own else tensor.size_bytes
        case _:
            return plain if is_plain else tensor.size_bytes


def head_bytes(vocabulary: int, hidden: int, held: Held) -> int:
    """Bytes of a plain output head after the load."""
    if held.is_packed:
        return vocabulary * hidden + 4 * vocabulary
    return vocabulary * hidden * held.width


def _expanded_bytes(tensor: StoredTensor, held: Held) -> int:
    """Each packed value becomes one element. Scales and zero points are not kept."""
    if _SCALES.search(tensor.name):
        return 0
    values = tensor.count
    if tensor.name.endswith("_blocks"):  # two 4-bit values in a byte
        values *= 2
    elif tensor.name.endswith("_packed"):
        values = tensor.size_bytes * 2
    return values * held.width


def staging_bytes(tensors: tuple[StoredTensor, ...], held: Held) -> int:
    """Bytes that loading takes for a moment: the largest tensor as it is stored and in float32, or the stacked
    experts."""
    if held.quantizes:
        largest = max((t.count for t in tensors if t.is_linear), default=0)
        return largest * (held.width + 4)
    if held.scheme is Scheme.EXPANDED:
        largest = max((t.count for t in tensors if not _SCALES.search(t.name)), default=0)
        return largest * (held.width + 4)
    return _stacked_experts(tensors, held)


def _stacked_experts(tensors: tuple[StoredTensor, ...], held: Held) -> int:
    """Bytes of the experts in the largest layer. They are stored one by one, and stacked into one tensor while they
    load."""
    by_layer: dict[int | None, int] = {}
    for tensor in tensors:
        if ".experts." in tensor.name and len(tensor.shape) == 2:
            size = held_bytes(tensor, held)
            by_layer[tensor.layer] = by_layer.get(tensor.layer, 0) + size
    return max(by_layer.values(), default=0)
