"""The formats of files of vectors. The format is known by the content of a file; its name is used where it has the
layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from steerserve.files.directions import documents, gguf, npy, pickles, tensors
from steerserve.files.directions.reader import Formats
from steerserve.files.directions.stored import DirectionFile, Found, Numbers
from steerserve.rules.bounds import DIRECTIONS
from steerserve.rules.saes.sites import EDITABLE, RESID_POST
from steerserve.rules.steering.vector import (
    KIND,
    OPERATIONS,
    PROJECT,
    SUGGESTED,
    ReadOptions,
    ReadVector,
    invalid,
)

DIRECTION, METADATA = "direction.pt", "direction_metadata.json"
"""A refusal direction, and the file beside it that says at which layer it was measured."""

_CAA = re.compile(r"vec_layer_([0-9]{1,4})(?:_(.+))?\.pt")
_PERSONA = re.compile(r".*_(?:response_avg|prompt_avg|prompt_last)_diff\.pt")
_LAYER = re.compile(r"(?:layer|direction\.)?([0-9]{1,4})(?:\.[A-Za-z_][A-Za-z0-9_]*)?")
_SITE = re.compile(rf"({'|'.join(EDITABLE)})\.([0-9]{{1,4}})")


def metadata_name(name: str) -> str | None:
    """The name of the file beside a file of directions that says more about it; None where there is none."""
    return METADATA if name == DIRECTION else None


def _find(file: DirectionFile, options: ReadOptions) -> Found:
    name, data = file.name, file.data
    if tensors.is_safetensors(data):
        return _safetensors(name, *tensors.read(name, data))
    if data.startswith(gguf.MAGIC):
        return gguf.read(name, data)
    if data.startswith(pickles.ZIP):
        return _pickle(file, options)
    if data.startswith(pickles.PROTOCOL):
        raise pickles.refuse_other(name)
    if data.startswith(npy.MAGIC):
        return _alone(name, "npy", "array", npy.read(name, data), options)
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return documents.read(name, data)
    formats = "GGUF, safetensors, .pt, .npy, .svec or JSON of Neuronpedia"
    raise invalid(name, "is empty" if not data else f"is of no known format: {formats}")


def _alone(
    file: str,
    format: str,
    key: str,
    numbers: Numbers,
    options: ReadOptions,
    layer: int | None = None,
) -> Found:
    """One direction. Its layer is `layer`, or the layer that the client gives."""
    index = layer if layer is not None else options.layer
    if index is None:
        beside = f", or send {METADATA} with it" if file == DIRECTION else ""
        raise invalid(file, f"does not say the layer of its direction; give it as `layer`{beside}")
    return Found(format, [(key, index, RESID_POST, numbers)], is_named=layer is not None)


def _safetensors(file: str, stored: Mapping[str, Numbers], metadata: Mapping[str, str]) -> Found:
    found = Found("steerserve" if metadata.get("format") == KIND else "safetensors")
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


def _pickle(file: DirectionFile, options: ReadOptions) -> Found:
    name, value = file.name, pickles.read(file.name, file.data)
    if isinstance(value, Numbers):
        if len(value.direction_shape) == 2:
            return _rows(name, value, options)
        return _one(file, value, options)
    found = Found("torch")
    for key, numbers in value:
        if numbers is None:
            raise invalid(name, f"is no tensor; {pickles.ADVICE}", key)
        found.entries.append((key, _layer(name, key), RESID_POST, numbers))
    return found


def _one(file: DirectionFile, numbers: Numbers, options: ReadOptions) -> Found:
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


def _rows(name: str, numbers: Numbers, options: ReadOptions) -> Found:
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
    found = Found("persona" if is_persona else "torch", convention=convention)
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


# ------------------------------------------------------------- vectors


def _check(file: str, found: Found, options: ReadOptions) -> None:
    """Raises:
    Refusal: INVALID_VECTOR for a vector to be projected out that is to be added, and for a site whose layers are not
        moved.
    """
    if found.operation == PROJECT and options.operation not in (None, PROJECT):
        raise invalid(file, "says that its directions are projected out, so they are never added")
    found.operation = options.operation or found.operation
    for key, _, site, _ in found.entries:
        if site != RESID_POST and (options.layer_convention or options.layer_offset):
            raise invalid(file, f"is at {site}, which layer_convention does not concern", key)
    is_moved = (options.layer_convention or found.convention) != RESID_POST or options.layer_offset
    if found.training is not None and is_moved:
        found.training = None
        found.warnings.append(
            "its training is left out, because it names the layers before they were moved"
        )


def _find_inline(document: Mapping[str, object]) -> Found:
    """The vector in a body that has `directions` as an exported document has them."""
    found = documents.of_export("body", document)
    found.format = "inline"
    return found


VECTORS: Formats[ReadVector] = Formats(
    ReadVector,
    "vector",
    "the layers of its directions",
    metadata_name,
    {},
    _find,
    _find_inline,
    _check,
    lambda found, _: {
        "operation": found.operation,
        "suggested_value": found.suggested_value,
    },
)
