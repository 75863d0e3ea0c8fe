"""What the compiled functions read and write, field by field as in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any


class Norm(ctypes.Structure):
    """The struct of the same name in `norms.h`; no norm where it is made without arguments."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("constant", "shift")),
    )

    @classmethod
    def from_module(cls, norm: Any) -> Norm:
        """The norm of a module with a weight [width], a constant and a shift. The weight must stay."""
        return cls(norm.weight.data_ptr(), norm.constant, norm.shift)


class Heads(ctypes.Structure):
    """The struct of the same name in `attention.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "cosines", "sines")),
        *((f"{name}_step", ctypes.c_int64) for name in ("queries", "keys", "values", "angles")),
        *((name, ctypes.c_void_p) for name in ("held_keys", "held_values", "places", "positions")),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "shared", "dim", "capacity")),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
        *((name, Norm) for name in ("query_norm", "key_norm")),
        ("turned", ctypes.c_void_p),
    )


class Weight(ctypes.Structure):
    """The struct of the same name in `weights.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "scales", "table", "bias")),
        *((name, ctypes.c_int64) for name in ("size", "width", "each", "form")),
    )


class Layer(ctypes.Structure):
    """The struct of the same name in `layers.h`."""

    _fields_ = (
        *(
            (f"{side}_{part}", Norm)
            for part in ("attention", "mlp")
            for side in ("before", "after")
        ),
        *((name, Norm) for name in ("of_queries", "of_keys")),
        *((name, Weight) for name in ("projected", "attended", "gated", "down")),
        *((name, ctypes.c_int64) for name in ("heads", "shared", "dim", "window")),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
        ("activation", ctypes.c_int32),
    )


class Part(ctypes.Structure):
    """The struct of the same name in `layers.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "places", "positions")),
        *((name, ctypes.c_int64) for name in ("first", "count", "capacity")),
    )


class Pass(ctypes.Structure):
    """The struct of the same name in `layers.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "parts")),
        *((name, ctypes.c_void_p) for name in ("products", "middle", "normalised", "heads")),
        ("wide", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("angles_step", "parts_count", "count")),
    )


class Draw(ctypes.Structure):
    """The struct of the same name in `draws.h`. A `floor` below 0 is that of the first draw."""

    _fields_ = (
        ("limit", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("row", "token")),
        *((name, ctypes.c_float) for name in ("uniform", "floor", "mass")),
        ("is_outside", ctypes.c_int32),
    )


class Figures(ctypes.Structure):
    """The struct of the same name in `columns.h`."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "width")),
        *((name, ctypes.c_void_p) for name in ("means", "squares", "active", "least", "greatest")),
    )


class Prompts(ctypes.Structure):
    """The struct of the same name in `prompts.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "cosines", "sines")),
        *((f"{name}_step", ctypes.c_int64) for name in ("queries", "keys", "values", "angles")),
        *((name, ctypes.c_void_p) for name in ("held_keys", "held_values")),
        *((name, ctypes.c_void_p) for name in ("capacities", "starts", "sizes", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "tokens", "heads", "shared", "dim")),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
        *((name, Norm) for name in ("query_norm", "key_norm")),
        ("turned", ctypes.c_void_p),
    )


class Step(IntEnum):
    """The steps of a decoder layer in `layers.h`. Each has the name of its result; `DONE` is the end of the layer."""

    HEADS = 0
    ATTENDED = 1
    NORMED_ATTENTION = 2
    ADDED_ATTENTION = 3
    MLP_INPUT = 4
    NEURONS = 5
    MLP = 6
    NORMED_MLP = 7
    ADDED_MLP = 8
    DONE = 9


TWINS: Mapping[str, type[ctypes.Structure]] = {
    "Norm<bfloat16>": Norm,
    "Heads<bfloat16>": Heads,
    "Weight": Weight,
    "Layer<bfloat16>": Layer,
    "Part<bfloat16>": Part,
    "Pass<bfloat16>": Pass,
    "Draw": Draw,
    "Figures": Figures,
    "Prompts<bfloat16>": Prompts,
}
"""The structs by their names in C++. One with numbers of float32 has the fields of the one with bfloat16."""


class Form(IntEnum):
    """The forms of the numbers of a weight in `weights.h`."""

    BFLOAT16 = 0
    FLOAT16 = 1
    FLOAT32 = 2
    CODE_OF_8 = 3
    CODE_OF_4 = 4


ENUMS: Mapping[str, type[IntEnum]] = {"Step": Step, "Form": Form}
"""The numbers with names, by the names of their types in C++."""


def assertions() -> Iterator[str]:
    """Lines of C++ that compile only if each struct and each of its fields is as large there as here, and lies at the
    same place, and if each name of an enum has the same number."""
    for name, numbers in ENUMS.items():
        for one in numbers:
            yield f'static_assert({name}::{one.name} == {one.value}, "{name}.{one.name}");'
    for name, struct in TWINS.items():
        yield f'static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");'
        for field, *_ in struct._fields_:
            own = getattr(struct, field)
            at, size = f"offsetof({name}, {field})", f"sizeof({name}::{field})"
            wanted = f"{at} == {own.offset} && {size} == {own.size}"
            yield f'static_assert({wanted}, "{name}.{field}");'
