"""What a pass does on a processor: functions in C++ that the compiler of the machine compiles once.

A call of the tensor library takes longer than its work on a few hundred numbers, and a step of one row makes hundreds
of them. The functions of `native.cpp` each take the place of five to forty such calls. Without a compiler the functions
of the tensor library serve. `compiling.py` compiles and loads the functions; `structs.py` has what they read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, cast

import structlog
import torch
from torch import Tensor

from steerserve.rules.models import compilers
from steerserve.worker.model.native import compiling
from steerserve.worker.model.native.structs import (
    Draw,
    Figures,
    Form,
    Heads,
    Layer,
    Norm,
    Part,
    Pass,
    Prompts,
    Step,
    Weight,
)

__all__ = (
    "Activation",
    "Draw",
    "Figures",
    "Form",
    "Heads",
    "Kernels",
    "Layer",
    "Norm",
    "Part",
    "Pass",
    "Prompts",
    "Step",
    "Weight",
    "found",
    "kernels",
    "threads",
)

_LANES, _PANEL, _DIM = 8, 16, 256
_NAMES = {torch.bfloat16: "half", torch.float32: "single"}
_TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float, "i": ctypes.c_int}
_ARGUMENTS = {
    "normalise": "pppnni",
    "gate": "pppnnnnii",
    "multiply": "pppppni",
    "attend": "pi",
    "attend_prompts": "pi",
    "peak": "pnnnppppi",
    "run_layer": "ppppiii",
    "draw": "pnpni",
    "figures": "pi",
}
"""The arguments of each function: pointers, numbers of 64 bits, floats, and integers of 32 bits."""
FORMS = {
    torch.bfloat16: Form.BFLOAT16,
    torch.float16: Form.FLOAT16,
    torch.float32: Form.FLOAT32,
}
"""The forms of weights without scales, by their dtypes."""

_WORK = 1 << 18
"""Numbers of work below which a second thread would take longer to begin than to help."""


class Activation(IntEnum):
    """The activations of gates: SiLU, and GELU with a tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""

    SILU = 0
    GELU = 1


Function = Callable[..., None]
"""A compiled function."""

log = structlog.get_logger(__name__)


class Kernels:
    """The functions of a compiled library, for tensors of the host in bfloat16 or float32."""

    def __init__(self, library: ctypes.CDLL) -> None:
        def function(name: str, of: str = "") -> Function:
            found: Any = getattr(library, name + of)
            found.argtypes, found.restype = [_TYPES[one] for one in _ARGUMENTS[name]], None
            return cast(Function, found)

        def functions(name: str) -> dict[torch.dtype, Function]:
            return {dtype: function(name, f"_{of}") for dtype, of in _NAMES.items()}

        self._normalise, self._gate, self._peak = map(functions, ("normalise", "gate", "peak"))
        self._multiply = functions("multiply")
        self._attend, self._attend_prompts = map(functions, ("attend", "attend_prompts"))
        self._run_layer = functions("run_layer")
        self._draw, self._figures = map(function, ("draw", "figures"))
        self.has_pairs = bool(library.has_pairs())
        """Whether the processor adds two products of bfloat16 numbers at once (AVX512-BF16)."""
        self.leaves_instructions = bool(library.leaves_instructions())
        """Whether the processor has instructions for products of bfloat16 numbers that these functions do not use:
        tiles (AMX), and those of Arm."""

    def __deepcopy__(self, _: object) -> Kernels:
        return self

    def panels(self, weight: Tensor) -> Tensor | None:
        """A weight [out, in] in bfloat16, float16 or float32 as `multiply` reads it, [panels, in / 2, 16, 2] for
        bfloat16 and otherwise [panels, in, 16]; None where `in` is no multiple of 8. A panel has 16 outputs, and two
        numbers of an output in bfloat16 lie together. Outputs that are missing in the last panel are 0."""
        width, size = weight.shape
        if weight.dtype not in FORMS or size % _LANES:
            return None
        count = -(-width // _PANEL)
        whole = weight.new_zeros(count * _PANEL, size)
        whole[:width] = weight
        numbers = (size // 2, 2) if weight.dtype == torch.bfloat16 else (size,)
        return whole.view(count, _PANEL, *numbers).transpose(1, 2).contiguous()

    def multiply(self, rows: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Rows [..., in] in bfloat16 or float32 times a weight, plus the bias, [..., width] in the dtype of the rows.
        Summed in float32 and rounded once. A row has the same bits whatever the other rows are."""
        rows = rows.contiguous()
        size, width = rows.shape[-1], weight.width
        count = rows.numel() // size
        out = torch.empty(*rows.shape[:-1], width, dtype=rows.dtype)
        wide = torch.empty(count * size)
        self._multiply[rows.dtype](
            ctypes.byref(weight),
            rows.data_ptr(),
            wide.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            count,
            threads(count * size * width),
        )
        return out

    def may_normalise(self, weight: Tensor) -> bool:
        """Whether rows of the width and dtype of this weight can be normalised."""
        return weight.dtype in _NAMES and weight.shape[0] % _LANES == 0 and weight.is_contiguous()

    def normalise(self, rows: Tensor, weight: Tensor, constant: float, shift: float) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of [..., width] in the dtype of the weight, to which the
        shift is added. Rounded once.

        Raises:
            ValueError: the rows have another width or dtype than the weight.
        """
        if rows.shape[-1] != weight.shape[0] or rows.dtype != weight.dtype:
            raise ValueError(f"rows {list(rows.shape)} do not fit the weight {list(weight.shape)}")
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        width, size = weight.shape[0], rows.numel()
        self._normalise[rows.dtype](
            rows.data_ptr(),
            ctypes.byref(Norm(weight.data_ptr(), constant, shift)),
            out.data_ptr(),
            size // width,
            width,
            threads(size),
        )
        return out

    def may_gate(self, dtype: torch.dtype, width: int) -> bool:
        """Whether rows of this width can be gated."""
        return dtype in _NAMES and width % _LANES == 0

    def gate(self, gates: Tensor, others: Tensor, activation: Activation) -> Tensor:
        """The activation of the gates [..., width] in bfloat16 or float32, times the others [..., width]. Rounded
        once."""
        width = gates.shape[-1]
        flat = [t.reshape(-1, width) for t in (gates, others)]
        flat = [t if t.stride(1) == 1 else t.contiguous() for t in flat]
        count = flat[0].shape[0]
        out = torch.empty(gates.shape, dtype=gates.dtype)
        self._gate[gates.dtype](
            *(t.data_ptr() for t in flat),
            out.data_ptr(),
            count,
            width,
            *(t.stride(0) for t in flat),
            activation,
            threads(count * width),
        )
        return out

    def run_layer(
        self, layer: Layer, of: Pass, rows: Tensor, out: Tensor, steps: range, threads: int
    ) -> None:
        """Take these steps of a decoder layer in a decode pass of `rows` [rows, 1, hidden]. After the last step, `out`
        has the rows behind the layer."""
        self._run_layer[rows.dtype](
            ctypes.byref(layer),
            ctypes.byref(of),
            rows.data_ptr(),
            out.data_ptr(),
            steps.start,
            steps.stop,
            threads,
        )

    def may_attend(self, dtype: torch.dtype, dim: int) -> bool:
        """Whether heads of so many numbers can be attended."""
        return dtype in _NAMES and dim <= _DIM and dim % (2 * _LANES) == 0

    def attend(self, dtype: torch.dtype, heads: Heads) -> None:
        """Write the rotated keys and the values of a decode pass into the cache, and the attention of each row over its
        tokens to `out`."""
        work = heads.rows * heads.heads * heads.dim * heads.capacity
        self._attend[dtype](ctypes.byref(heads), threads(work))

    def attend_prompts(self, dtype: torch.dtype, prompts: Prompts) -> None:
        """Write the rotated keys and the values of a prefill pass into the cache, and the attention of each token over
        the tokens up to it to `out`. The bits of a token depend neither on the other rows nor on the part of its prompt
        that the pass reads."""
        self._attend_prompts[dtype](ctypes.byref(prompts), torch.get_num_threads())

    def may_draw(self, logits: Tensor) -> bool:
        """Whether tokens can be drawn from logits [rows, vocabulary]."""
        return logits.dtype in _NAMES and logits.stride(1) == 1

    def peaks(
        self, logits: Tensor, temperatures: list[float]
    ) -> tuple[list[float], list[int], Tensor]:
        """Of each row of logits [rows, vocabulary] the peak, which is NaN where a logit is, and where its temperature
        is 0 the first token with the peak. Of the other rows (logits - peak) / temperature, in float32 [other rows,
        vocabulary]."""
        count, size = logits.shape
        peaks, tokens = (ctypes.c_float * count)(), (ctypes.c_int64 * count)()
        scaled = torch.empty(count - temperatures.count(0.0), size)
        self._peak[logits.dtype](
            logits.data_ptr(),
            logits.stride(0),
            count,
            size,
            (ctypes.c_float * count)(*temperatures),
            peaks,
            tokens,
            scaled.data_ptr(),
            threads(logits.numel()) if count > 1 else 1,
        )
        return list(peaks), list(tokens), scaled

    def draw(self, weights: Tensor, draws: Sequence[Draw]) -> list[Draw]:
        """The draws with their tokens, each from a row of weights [rows, vocabulary] in float32."""
        size, count = weights.shape[1], len(draws)
        made = (Draw * count)(*draws)
        use = threads(count * size) if count > 1 else 1
        self._draw(weights.data_ptr(), size, made, count, use)
        return list(made)

    def figures(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of each column of values [rows, columns] in float32, which has a multiple of 16 columns: the mean, and the
        sum of the squares of the differences from it, in float64; how many values are not 0, the least and the greatest
        value, in float32."""
        rows, width = values.shape
        means, squares = torch.empty(2, width, dtype=torch.float64)
        active, least, greatest = torch.empty(3, width)
        found = (means, squares, active, least, greatest)
        of = Figures(values.data_ptr(), rows, width, *(part.data_ptr() for part in found))
        self._figures(ctypes.byref(of), threads(values.numel()))
        return found


def threads(work: int) -> int:
    """The number of threads that share so many numbers of work."""
    return torch.get_num_threads() if work > _WORK else 1


def kernels() -> Kernels | None:
    """The compiled functions; None where there are none."""
    return found()[0]


@cache
def found() -> tuple[Kernels | None, str]:
    """The compiled functions and where they come from; None and the reason where they cannot be compiled."""
    try:
        library = compiling.library()
    except compiling.Unavailable as why:
        say = log.warning if str(why).startswith(compilers.NO_FOLDER) else log.info
        say("kernels_not_compiled", why=str(why))
        return None, str(why)
    return Kernels(library), "they were compiled on this machine"
