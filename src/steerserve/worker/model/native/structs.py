"""What the compiled functions read and write, field by field as in C++."""

from __future__ import annotations

import ctypes


class Heads(ctypes.Structure):
    """The struct of the same name in `attention.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "cosines", "sines")),
        *((f"{name}_step", ctypes.c_int64) for name in ("queries", "keys", "values", "angles")),
        *((name, ctypes.c_void_p) for name in ("held_keys", "held_values", "places", "positions")),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "shared", "dim", "capacity")),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


class Weight(ctypes.Structure):
    """The struct of the same name in `weights.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "scales", "table", "bias")),
        *((name, ctypes.c_int64) for name in ("size", "width", "each")),
    )


class Layer(ctypes.Structure):
    """The struct of the same name in `layers.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("before_attention", "before_mlp")),
        *((name, Weight) for name in ("projected", "attended", "gated", "down")),
        *((name, ctypes.c_int64) for name in ("heads", "shared", "dim", "window")),
        *((name, ctypes.c_float) for name in ("attention_constant", "mlp_constant", "scale")),
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
        ("scale", ctypes.c_float),
    )
