"""Reads files of directions into vectors. The format is known by the content of a file; its name is used where the
layer stands in it. No network, and no tensor library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.files import local
from steerserve.files.vectors import documents, gguf, npy, pickles, tensors
from steerserve.files.vectors.documents import JsonVector
from steerserve.files.vectors.stored import Numbers, float32
from steerserve.rules.bounds import DIRECTIONS, VECTOR_FILE_BYTES
from steerserve.rules.saes.sites import RESID_POST, SITES
from steerserve.rules.steering.vector import (
    KIND,
    OPERATIONS,
    PROJECT,
    SUGGESTED,
    Convention,
    Direction,
    Operation,
    ReadOptions,
    ReadVector,
    checked,
    invalid,
    place,
)

DIRECTION, METADATA = "direction.pt", "direction_metadata.json"
"""A refusal direction, and the file beside it that says at which layer it was measured."""

METADATA_MAXIMUM = 1 << 16

_CAA = re.compile(r"vec_layer_([0-9]{1,4})(?:_(.+))?\.pt")
_PERSONA = re.compile(r".*_(?:response_avg|prompt_avg|prompt_last)_diff\.pt")
_LAYER = re.compile(r"(?:layer|direction\.)?([0-9]{1,4})(?:\.[A-Za-z_][A-Za-z0-9_]*)?")
_SITE = re.compile(rf"({'|'.join(SITES)})\.([0-9]{{1,4}})")


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file of directions: its name without a folder, its content, and the content of the file beside it that
    `metadata_name` names."""

    name: str
    data: bytes = field(repr=False)
    metadata: bytes | None = None


@dataclass(slots=True)
class _Found:
    """What a format says, before the options of the client are used."""

    format: str
    entries: list[tuple[str, int, str, Numbers]] = field(default_factory=list)
    convention: Convention = "resid_post"
    operation: Operation = "add"
    model_hint: str | None = None
    suggested_value: float | None = None
    warnings: list[str] = field(default_factory=list)
    training: dict[str, object] | None = None
    is_named: bool = True
    """Whether the file says the layers of its directions."""


def metadata_name(name: str) -> str | None:
    """The name of the file beside a file of directions that says more about it; None where there is none."""
    return METADATA if name == DIRECTION else None


def load(
    named: str,
    check: local.PathCheck,
    metadata_name: Callable[[str], str | None] = metadata_name,
) -> tuple[Path, VectorFile]:
    """The file that a client names on this machine, and the one beside it that `metadata_name` names. `check` refuses a
    path that may not be read.

    Raises:
        Refusal: INVALID_LOCAL_PATH for a path that is no file or is protected; INVALID_VECTOR for a file that is too
            large.
    """
    check(named)
    path = local.resolve_file(named)
    name, beside = metadata_name(path.name), None
    metadata = path.with_name(name or path.name)
    with local.reading(path.parent):
        has_metadata = name is not None and metadata.is_file()
    if has_metadata:
        check(str(metadata))
        local.resolve_file(str(metadata))
        beside = _content(metadata, METADATA_MAXIMUM)
    return path, VectorFile(path.name, _content(path, VECTOR_FILE_BYTES), beside)


def _content(path: Path, most: int) -> bytes:
    with local.reading(path.parent), path.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise invalid(path.name, f"is larger than {most} bytes")
    return data


def read(file: VectorFile, options: ReadOptions) -> ReadVector:
    """The vector in a file.

    Raises:
        Refusal: INVALID_VECTOR naming the file, and the tensor or field: a format that is not known, a damaged file,
            what no vector has (see `rules.steering.vector.checked`), options that the file contradicts.
    """
    if len(file.data) > VECTOR_FILE_BYTES:
        raise invalid(file.name, f"is larger than {VECTOR_FILE_BYTES} bytes")
    return _placed(file.name, _found(file, options), options)


def _found(file: VectorFile, options: ReadOptions) -> _Found:
    name, data = file.name, file.data
    if tensors.is_safetensors(data):
        return _safetensors(name, *tensors.read(name, data))
    if data.startswith(gguf.MAGIC):
        made = gguf.read(name, data)
        return _Found(
            made.format,
            [(f"direction.{n}", n, made.site, numbers) for n, numbers in made.tensors.items()],
            "gguf",
            made.operation,
            made.model_hint,
            made.suggested_value,
            list(made.warnings),
        )
    if data.startswith(pickles.ZIP):
        return _pickle(file, pickles.read(name, data), options)
    if data.startswith(pickles.PROTOCOL):
        raise pickles.refuse_other(name)
    if data.startswith(npy.MAGIC):
        return _alone(name, "npy", "array", npy.read(name, data), options)
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _json(documents.read(name, data))
    formats = "GGUF, safetensors, .pt, .npy, .svec or JSON of Neuronpedia"
    raise invalid(name, "is empty" if not data else f"is of no known format: {formats}")


def _json(made: JsonVector) -> _Found:
    return _Found(
        made.format,
        made.found,
        made.convention,
        made.operation,
        made.model_hint,
        made.suggested_value,
        made.warnings,
        made.training,
    )


def _alone(
    file: str,
    format: str,
    key: str,
    numbers: Numbers,
    options: ReadOptions,
    layer: int | None = None,
) -> _Found:
    """One direction. Its layer is `layer`, or the layer that the client gives."""
    index = layer if layer is not None else options.layer
    if index is None:
        beside = f", or send {METADATA} with it" if file == DIRECTION else ""
        raise invalid(file, f"does not say the layer of its direction; give it as `layer`{beside}")
    found = _Found(format, [(key, index, RESID_POST, numbers)], is_named=layer is not None)
    return found


def _safetensors(file: str, stored: Mapping[str, Numbers], metadata: Mapping[str, str]) -> _Found:
    found = _Found("steerserve" if metadata.get("format") == KIND else "safetensors")
    operation = metadata.get("operation", "add")
    if found.format == "steerserve":
        if operation not in OPERATIONS:
            raise invalid(file, "is no known operation", "operation")
        found.operation = "project" if operation == PROJECT else "add"
        found.model_hint = metadata.get("model_hint") or None
        with suppress(ValueError):
            found.suggested_value = documents.suggestion(float(metadata.get(SUGGESTED, "")))
    for key, numbers in stored.items():
        if match := _SITE.fullmatch(key):
            found.entries.append((key, int(match[2]), match[1], numbers))
        else:
            found.entries.append((key, _layer(file, key), RESID_POST, numbers))
    return found


def _layer(file: str, key: str) -> int:
    match = _LAYER.fullmatch(key)
    if match is None:
        raise invalid(file, "does not say its layer: `layer12`, `direction.12` or `12` do", key)
    return int(match[1])


# ------------------------------------------------------------- files of torch.save


def _pickle(file: VectorFile, value: object, options: ReadOptions) -> _Found:
    name = file.name
    if isinstance(value, Numbers):
        if len(value.direction_shape) == 2:
            return _rows(name, value, options)
        return _one(file, value, options)
    if isinstance(value, dict):
        found = _Found("torch")
        for key, numbers in value.items():
            if not isinstance(numbers, Numbers):
                raise invalid(name, f"is no tensor; {pickles.ADVICE}", str(key))
            found.entries.append((str(key), _layer(name, str(key)), RESID_POST, numbers))
        return found
    raise invalid(name, f"holds neither a tensor nor a dict of tensors; {pickles.ADVICE}")


def _one(file: VectorFile, numbers: Numbers, options: ReadOptions) -> _Found:
    """One tensor with one axis: of the refusal direction where its metadata are there, else of CAA."""
    if file.metadata is not None:
        said = documents.parse(METADATA, file.metadata)
        layer = said.get("layer")
        if type(layer) is not int or not 0 <= layer <= 9999:
            raise invalid(METADATA, "is no number of a layer", "layer")
        found = _alone(file.name, "refusal_direction", "tensor", numbers, options, layer)
        found.convention = "resid_pre"
        return found
    match = _CAA.fullmatch(file.name)
    layer = int(match[1]) if match and options.layer is None else None
    found = _alone(file.name, "caa" if match else "torch", "tensor", numbers, options, layer)
    found.model_hint = match[2] if match else None
    if file.name == DIRECTION and options.layer_convention is None:
        found.warnings.append(
            f"files of this name in refusal_direction are measured before their layer, which their {METADATA} says; "
            f"without it, layer {options.layer} is the residual stream after block {options.layer}: give the "
            "layer_convention resid_pre where the file is one of them"
        )
    return found


def _rows(name: str, numbers: Numbers, options: ReadOptions) -> _Found:
    """A tensor of two axes [layers + 1, width], as persona vectors have: row r belongs to entry r of the hidden states
    of Hugging Face, so that the first row is of the embeddings and the last one of the value after the final norm."""
    rows = numbers.direction_shape[0]
    is_persona = _PERSONA.fullmatch(name) is not None
    convention = options.layer_convention or ("hf_hidden_states" if is_persona else None)
    if convention is None:
        raise invalid(
            name,
            f"has the shape {list(numbers.shape)}, and does not say what its rows are; give a layer_convention if each "
            "row is a layer",
        )
    found = _Found("persona" if is_persona else "torch", convention=convention)
    table = Numbers(numbers.dtype, numbers.direction_shape, numbers.data)
    kept = range(rows)
    if convention == "hf_hidden_states":
        kept = range(1, rows - 1)
        found.warnings += [
            "row 0 is left out: it is the direction of the embeddings, before the first layer",
            f"row {rows - 1} is left out: it was measured after the final norm, where no edit acts",
        ]
    if len(kept) > DIRECTIONS:
        raise invalid(name, f"has more than {DIRECTIONS} directions")
    for row in kept:
        found.entries.append((f"row {row}", row, RESID_POST, table.row(row)))
    return found


# ------------------------------------------------------------- layers


def _placed(file: str, found: _Found, options: ReadOptions) -> ReadVector:
    """The vector, with every direction at its layer."""
    if options.layer is not None and found.is_named:
        raise invalid(file, "says the layers of its directions, so that `layer` must be left out")
    if found.operation == PROJECT and options.operation not in (None, PROJECT):
        raise invalid(file, "says that its directions are projected out, so they are never added")
    if len(found.entries) > DIRECTIONS:
        raise invalid(file, f"has more than {DIRECTIONS} directions")
    convention = options.layer_convention or found.convention
    directions: list[tuple[str, Direction]] = []
    for key, index, site, numbers in found.entries:
        if site != RESID_POST and (options.layer_convention or options.layer_offset):
            raise invalid(file, f"is at {site}, which layer_convention does not concern", key)
        where = place(index, site, convention, options.layer_offset)
        if where is None:
            raise invalid(
                file,
                f"would be before the first layer, or after any, with the layer_convention {convention} and the "
                f"layer_offset {options.layer_offset}",
                key,
            )
        directions.append((key, Direction(*where, float32(file, key, numbers))))
    if found.training is not None and (convention != RESID_POST or options.layer_offset):
        found.training = None
        found.warnings.append(
            "its training is left out, because it names the layers before they were moved"
        )
    return ReadVector(
        format=found.format,
        directions=checked(file, directions),
        keys=tuple(key for key, *_ in found.entries),
        operation=options.operation or found.operation,
        layer_convention=convention,
        layer_offset=options.layer_offset,
        model_hint=found.model_hint,
        suggested_value=found.suggested_value,
        warnings=tuple(found.warnings),
        training=found.training,
    )


def inline(document: Mapping[str, object], options: ReadOptions) -> ReadVector:
    """The vector in the body of a request, which has `directions` as an exported document has them.

    Raises:
        Refusal: INVALID_VECTOR as `read`.
    """
    found = _json(documents.of_export("body", document))
    found.format = "inline"
    return _placed("body", found, options)
