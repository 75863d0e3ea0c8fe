"""The sizes of a checkpoint and the orientation of its matrices, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.worker.sae.canonical import NEEDS_K
from steerserve.worker.sae.files import Tensors
from steerserve.worker.sae.formats.description import GATED, Description
from steerserve.worker.sae.formats.sources import shown

MATRICES = ("W_enc", "W_dec")
VECTORS = ("b_enc", *GATED, "threshold", "log_threshold", "scaling_factor")
"""Parts with one number for each feature."""

SCALARS = ("threshold", "log_threshold")
"""Parts for which a single number of any dtype may stand for all features."""

FLOATS = ("float32", "bfloat16", "float16", "float64")
LISTED = 40


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of an SAE, and the matrices whose stored orientation is not the canonical one."""

    d_in: int
    d_sae: int
    transposed: frozenset[str]


def shapes_of(tensors: Tensors) -> dict[str, list[int]]:
    """The shapes of the first LISTED tensors by name."""
    return {shown(name): list(info.shape) for name, info in list(tensors.infos.items())[:LISTED]}


def dimensions_of(description: Description) -> Dimensions:
    """The sizes of a checkpoint.

    The lengths of the biases decide the orientation of a matrix, not its name: published checkpoints use the same name
    for both orientations. Only where d_in equals d_sae the habit of the format decides.

    Raises:
        Refusal: SAE_LOAD_FAILED with the name of the tensor that is missing or does not fit the others, or with the
            name of the configuration that states another size.
    """
    infos = description.tensors.infos
    shapes = {part: infos[name].shape for part, name in description.parts.items() if name in infos}
    _check_matrices(description, shapes)
    d_in, d_sae = _lengths(shapes)
    _check_stated(description, {"d_in": d_in, "d_sae": d_sae})
    turned = frozenset(
        part
        for part, expected in (("W_enc", (d_in, d_sae)), ("W_dec", (d_sae, d_in)))
        if _is_turned(description, part, shapes[part], expected)
    )
    _check_vectors(description, shapes, d_in, d_sae)
    for part, name in description.parts.items():
        is_free = part in SCALARS or part not in shapes
        if not is_free and infos[name].dtype not in FLOATS:
            raise misfit(description, f"{name} is stored as {infos[name].dtype}, not as a float")
    if description.k is not None and description.activation in NEEDS_K:
        if description.k > d_sae:
            raise misfit(description, f"k of {description.k} is more than its {d_sae} features")
        if description.activation == "groupmax" and d_sae % description.k:
            raise misfit(description, f"{d_sae} features are not {description.k} equal groups")
    return Dimensions(d_in, d_sae, turned)


def _check_matrices(description: Description, shapes: Mapping[str, tuple[int, ...]]) -> None:
    biases = GATED if description.activation == "gated" else ("b_enc",)
    for part in (*MATRICES, "b_dec", *biases):
        if part not in shapes and part not in description.optional:
            raise misfit(description, f"{_called(description, part)} is missing")
    for part in MATRICES:
        if len(shapes[part]) != 2 or 0 in shapes[part]:
            raise misfit(
                description,
                f"{_called(description, part)} has shape {list(shapes[part])}, expected two axes of at least 1",
            )


def _check_stated(description: Description, sizes: Mapping[str, int]) -> None:
    for stated in description.stated_sizes:
        size = sizes[stated.kind]
        if stated.value != size:
            raise misfit(
                description,
                f"its tensors have {stated.kind} {size}, but {stated.file} says {stated.name} {stated.value}",
            )


def _is_turned(
    description: Description, part: str, shape: tuple[int, ...], expected: tuple[int, int]
) -> bool:
    if shape not in (expected, expected[::-1]):
        raise misfit(
            description,
            f"{_called(description, part)} has shape {list(shape)}, expected {list(expected)} or the reverse",
        )
    is_square = expected[0] == expected[1]
    return part in description.transposed if is_square else shape != expected


def _check_vectors(
    description: Description, shapes: Mapping[str, tuple[int, ...]], d_in: int, d_sae: int
) -> None:
    for part in (*VECTORS, "b_dec"):
        if part not in shapes:
            continue
        wanted = (d_in,) if part == "b_dec" else (d_sae,)
        if shapes[part] != wanted and not (part in SCALARS and shapes[part] in ((), (1,))):
            raise misfit(
                description,
                f"{_called(description, part)} has shape {list(shapes[part])}, expected {list(wanted)}",
            )


def _lengths(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """d_in and d_sae: the lengths of the biases. Where a bias is missing, the matrices give its length."""
    first, second = sorted(shapes["W_enc"])
    d_in = shapes["b_dec"][0] if len(shapes.get("b_dec", ())) == 1 else None
    d_sae = next(
        (shapes[p][0] for p in VECTORS if len(shapes.get(p, ())) == 1 and shapes[p] != (1,)), None
    )
    if d_in is None:
        d_in = first if d_sae is None or d_sae == second else second
    if d_sae is None:
        d_sae = second if d_in == first else first
    return d_in, d_sae


def _called(description: Description, part: str) -> str:
    return description.parts.get(part, part)


def misfit(description: Description, fault: str) -> Refusal:
    """The refusal of a weights file, with its name and the shapes of its tensors."""
    return Refusal(
        "SAE_LOAD_FAILED",
        f"{description.tensors.path.name}: {fault}",
        format=description.format,
        tensors=shapes_of(description.tensors),
    )
