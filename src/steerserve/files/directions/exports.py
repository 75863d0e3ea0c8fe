"""Vectors as files: GGUF as llama.cpp loads it, safetensors, and JSON."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from steerserve.errors import Refusal
from steerserve.nouns.directions.rules import Training
from steerserve.rules.models.gguf_layout import ALIGNMENT_DEFAULT
from steerserve.rules.saes.sites import RESID_POST
from steerserve.rules.steering.vector import ADD, KIND, PROJECT, SUGGESTED, Direction, Vector

_VERSION = 3
_STRING, _U32, _F32, _TENSOR_F32 = 8, 4, 6, 0


def gguf(vector: Vector, model_hint: str | None, suggested_value: float | None) -> bytes:
    """A GGUF control vector: the tensor `direction.N` is added to the output of block N. A vector that is projected out
    gets the keys of GLP too, and directions of length 1.

    Raises:
        Refusal: INVALID_VECTOR for a direction of layer 0 or of another site, which the format cannot say.
    """
    for one in vector.directions:
        if one.site != RESID_POST or one.layer == 0:
            why = (
                f"the direction of layer {one.layer}, {one.site} cannot be exported: GGUF control vectors have "
                f"directions after block 1 and later blocks"
            )
            raise Refusal("INVALID_VECTOR", why, layer=one.layer, site=one.site)
    keys = [
        _text("general.architecture", "controlvector"),
        _text("controlvector.model_hint", model_hint or ""),
        _key("controlvector.layer_count", _U32) + struct.pack("<I", len(vector.directions)),
    ]
    datas = [one.data for one in vector.directions]
    if vector.operation == PROJECT:
        keys += [
            _text("glp.mode", "project"),
            _key("glp.spec_version", _U32) + struct.pack("<I", 1),
            _text("glp.hook_point", "residual_stream_post_layer"),
            _key("glp.alpha_default", _F32)
            + struct.pack("<f", 1.0 if suggested_value is None else suggested_value),
        ]
        datas = [one.unit for one in vector.directions]
    head = [b"GGUF", struct.pack("<IQQ", _VERSION, len(datas), len(keys)), *keys]
    offset = 0
    for one in vector.directions:
        name = f"direction.{one.layer}"
        head.append(_string(name) + struct.pack("<IQIQ", 1, one.width, _TENSOR_F32, offset))
        offset += _padded(len(one.data))
    whole = b"".join(head)
    return _filled(whole) + b"".join(map(_filled, datas))


def safetensors(vector: Vector, model_hint: str | None, suggested_value: float | None) -> bytes:
    """A safetensors file with a tensor `<site>.<layer>` for each direction. Its metadata have the operation and the
    suggested value."""
    metadata = {"format": KIND, "operation": vector.operation, "name": vector.name}
    if suggested_value is not None:
        metadata[SUGGESTED] = repr(suggested_value)
    header: dict[str, object] = {"__metadata__": metadata | _hinted(model_hint)}
    end = 0
    for one in vector.directions:
        begin, end = end, end + len(one.data)
        entry = {"dtype": "F32", "shape": [one.width], "data_offsets": [begin, end]}
        header[f"{one.site}.{one.layer}"] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(one.data for one in vector.directions)


def document(
    vector: Vector, model_hint: str | None, suggested_value: float | None, training: Training | None
) -> dict[str, object]:
    """The JSON document of a vector, which can be imported again. It says how the vector was trained."""
    said: dict[str, object] = {"kind": KIND, "version": 1, "name": vector.name}
    if vector.operation != ADD:
        said["operation"] = vector.operation
    if suggested_value is not None:
        said[SUGGESTED] = suggested_value
    directions = [stored(one) for one in vector.directions]
    if training is not None:
        said["training"] = training
    return said | _hinted(model_hint) | {"directions": directions}


def stored(direction: Direction) -> dict[str, Any]:
    """A direction as documents and answers have it."""
    return {
        "layer": direction.layer,
        "site": direction.site,
        "dtype": "float32",
        "shape": [direction.width],
        "data": base64.b64encode(direction.data).decode(),
    }


def _hinted(model_hint: str | None) -> dict[str, str]:
    return {"model_hint": model_hint} if model_hint else {}


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int) -> bytes:
    return _string(name) + struct.pack("<I", kind)


def _text(name: str, value: str) -> bytes:
    return _key(name, _STRING) + _string(value)


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT_DEFAULT


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT_DEFAULT)
