"""GGUF control vectors, as repeng, llama.cpp and EasySteer write them, and GLP (GGUF Layer Projection).

A control vector has tensors `direction.N`: the direction for the residual stream after block N, counted from 0. GLP has
the same tensors, and keys `glp.*` that say whether the directions are added or projected out.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping

from steerserve.files.directions.stored import DTYPES, Found, Numbers, float32, numbers_of
from steerserve.files.gguf_part import Part, read_content
from steerserve.rules.bounds import DIRECTIONS
from steerserve.rules.models.gguf_layout import GGUFError
from steerserve.rules.saes.sites import ATTN_OUT, MLP_OUT, RESID_POST
from steerserve.rules.steering.vector import (
    PROJECT,
    Direction,
    Operation,
    invalid,
)
from steerserve.rules.text import shown

MAGIC = b"GGUF"
NAME = re.compile(r"direction\.(0|[1-9][0-9]{0,3})")
_MORE = re.compile(r"direction\.[0-9]+\.[0-9]+")
_KEPT = re.compile(r"glp\..*|dspark\..*|general\.base_model\.0\..*|[^.]+\.model_hint|general\..*")
_HOOKS = {
    "residual_stream_post_layer": RESID_POST,
    "ffn_out_pre_residual": MLP_OUT,
    "attn_out_pre_residual": ATTN_OUT,
}
_MODES: dict[str, Operation] = {"project": "project", "add": "add"}
_UNIT = 1e-3
"""How far the length of a direction that is projected out may be from 1."""


def read(file: str, data: bytes) -> Found:
    """The control vector in a file.

    Raises:
        Refusal: INVALID_VECTOR for a damaged file, for tensors that are no directions, and for what a GLP file asks for
            and this service cannot do.
    """
    try:
        part = read_content(data, lambda key: _KEPT.fullmatch(key) is not None)
    except GGUFError as error:
        raise invalid(file, f"is damaged or no GGUF file: {error}") from None
    if part.missing:
        raise invalid(file, f"is cut short: {part.missing} bytes are missing")
    tensors = _tensors(file, part, data)
    if any(key.startswith("dspark.") for key in part.values):
        raise invalid(file, "has dspark.* keys of a form before GLP, which does not say what to do")
    hint = _hint(part)
    if not any(key.startswith("glp.") for key in part.values):
        return _found("gguf", tensors, RESID_POST, hint)
    return _glp(file, part, tensors, hint)


def _tensors(file: str, part: Part, data: bytes) -> dict[int, Numbers]:
    if len(part.tensors) > DIRECTIONS:
        raise invalid(file, f"has more than {DIRECTIONS} tensors")
    tensors: dict[int, Numbers] = {}
    for tensor in part.tensors:
        name = tensor.name
        match = NAME.fullmatch(name)
        if match is None:
            why = "is no direction.N; the file is no control vector"
            if _MORE.fullmatch(name):
                why = "is a further direction of its layer; only files of rank 1 are read"
            raise invalid(file, why, name)
        if tensor.row != tensor.elements:
            raise invalid(file, "has more than one axis", name)
        begin = part.start + tensor.offset
        dtype = tensor.kind.name if tensor.kind else "an unknown type"
        tensors[int(match[1])] = numbers_of(
            file,
            name,
            DTYPES.get(dtype, dtype),
            (tensor.elements,),
            memoryview(data)[begin : begin + tensor.size],
        )
    return tensors


def _found(format: str, tensors: Mapping[int, Numbers], site: str, hint: str | None) -> Found:
    entries = [(f"direction.{layer}", layer, site, one) for layer, one in tensors.items()]
    return Found(format, entries, "gguf", model_hint=hint)


def _hint(part: Part) -> str | None:
    """The model that the file names. The key has the architecture as its prefix, which tools write differently."""
    for key, value in part.values.items():
        if key.endswith(".model_hint") and isinstance(value, str) and value:
            return value
    name = part.values.get("general.base_model.0.name")
    return name if isinstance(name, str) and name else None


# ------------------------------------------------------------- GLP


def _glp(file: str, part: Part, tensors: Mapping[int, Numbers], hint: str | None) -> Found:
    operation = _MODES.get(_text(file, part, "glp.mode") or "add")
    if operation is None:
        raise invalid(file, "is no known mode; known are project and add", "glp.mode")
    version = part.values.get("glp.spec_version", 1)
    if version not in (1, 2):
        raise invalid(file, "is a version that this service does not know", "glp.spec_version")
    if part.values.get("glp.rank", 1) != 1:
        raise invalid(file, "is not 1; only files of rank 1 are read", "glp.rank")
    for key in ("glp.dir_scales", "glp.layer_scales"):
        _check_scales(file, part, key)
    hook = _text(file, part, "glp.hook_point") or "residual_stream_post_layer"
    if hook not in _HOOKS:
        raise invalid(file, f"names the unknown site {shown(hook)!r}", "glp.hook_point")
    if operation == PROJECT:
        _check_unit(file, tensors)
    alpha = part.values.get("glp.alpha_default")
    suggested = float(alpha) if isinstance(alpha, int | float) else None
    if suggested is not None and not math.isfinite(suggested):
        raise invalid(file, "is not finite", "glp.alpha_default")
    found = _found("glp", tensors, _HOOKS[hook], hint)
    found.operation, found.suggested_value = operation, suggested
    found.warnings = _warnings(file, part, tensors, hook, suggested)
    return found


def _text(file: str, part: Part, key: str) -> str | None:
    value = part.values.get(key)
    if key in part.values and not isinstance(value, str):
        raise invalid(file, "is no text", key)
    return value if isinstance(value, str) else None


def _check_scales(file: str, part: Part, key: str) -> None:
    """Refuse strengths that differ between directions: an edit has one value for all layers of a vector."""
    said = _text(file, part, key) or ""
    try:
        scales = [float(one.rpartition(":")[2]) for one in said.split(",") if one.strip()]
    except ValueError:
        raise invalid(file, "is no list of numbers", key) from None
    if any(scale != 1.0 for scale in scales):
        raise invalid(file, "asks for strengths of single directions, which no edit has", key)


def _check_unit(file: str, tensors: Mapping[int, Numbers]) -> None:
    for layer, numbers in tensors.items():
        key = f"direction.{layer}"
        length = Direction(layer, RESID_POST, float32(file, key, numbers)).norm
        if not abs(length - 1.0) <= _UNIT:
            raise invalid(file, f"has the length {length:.4g}; what is projected out has 1", key)


def _warnings(
    file: str,
    part: Part,
    tensors: Mapping[int, Numbers],
    hook: str,
    suggested: float | None,
) -> list[str]:
    warnings = []
    derived = _text(file, part, "glp.derived_at")
    if derived is not None and derived != hook:
        warnings.append(f"the directions were measured at {shown(derived)}, and act at {hook}")
    if suggested not in (None, 1.0):
        warnings.append(f"the file asks for the strength {suggested:g}: give it as the value")
    digest = _text(file, part, "glp.content_sha256")
    if digest is not None:
        orders = list(tensors), sorted(tensors)
        made = {hashlib.sha256(b"".join(tensors[n].data for n in o)).hexdigest() for o in orders}
        if digest.lower() not in made:
            warnings.append("the tensors do not have the digest that glp.content_sha256 says")
    return warnings
