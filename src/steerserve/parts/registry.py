"""All parts that requests of this build may have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from steerserve.parts.activations.form import ACTIVATIONS
from steerserve.parts.divergence.form import DIVERGENCE
from steerserve.parts.logprobs.form import LOGPROBS
from steerserve.parts.part import BodyField, Part
from steerserve.parts.pool.form import POOL
from steerserve.parts.readings.form import READINGS

ENTRY_POINTS = "steerserve.parts"
"""The group of entry points under which other packages add parts of their own."""
_OWN = (ACTIVATIONS, LOGPROBS, READINGS, POOL, DIVERGENCE)


@cache
def parts() -> Mapping[str, Part[Any, Any]]:
    """The parts by their names: those of this package, then those of others.

    Raises:
        ValueError: two parts have one name.
    """
    found = {part.name: part for part in _OWN}
    for point in entry_points(group=ENTRY_POINTS):
        part = point.load()
        if part.name in found:
            raise ValueError(f"the entry point {point.value} adds a part {part.name!r} again")
        found[part.name] = part
    return MappingProxyType(found)


@cache
def body_fields() -> Mapping[str, BodyField]:
    """The fields of all parts in the bodies of `/v1`, by their names."""
    return MappingProxyType(
        {name: field for part in parts().values() for name, field in part.fields.items()}
    )
