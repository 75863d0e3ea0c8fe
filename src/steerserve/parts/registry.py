"""All parts that requests of this build may have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

import steerserve.parts as package
from steerserve.parts.part import BodyField, Part

ENTRY_POINTS = "steerserve.parts"
"""The group of entry points under which other packages add parts of their own."""


@cache
def parts() -> Mapping[str, Part[Any, Any]]:
    """The parts by their names: those of this package, each with a folder here, then those of others.

    Raises:
        ValueError: two parts have one name.
    """
    folders = (one.name for one in iter_modules(package.__path__) if one.ispkg)
    found = {part.name: part for part in map(_own, folders)}
    for point in entry_points(group=ENTRY_POINTS):
        part = point.load()
        if part.name in found:
            raise ValueError(f"the entry point {point.value} adds a part {part.name!r} again")
        found[part.name] = part
    return MappingProxyType(found)


def _own(folder: str) -> Part[Any, Any]:
    """The part whose form is in this folder."""
    form = import_module(f"{package.__name__}.{folder}.form")
    (part,) = (one for one in vars(form).values() if isinstance(one, Part))
    return part


@cache
def body_fields() -> Mapping[str, BodyField]:
    """The fields of all parts in the bodies of `/v1`, by their names."""
    return MappingProxyType(
        {name: field for part in parts().values() for name, field in part.fields.items()}
    )
