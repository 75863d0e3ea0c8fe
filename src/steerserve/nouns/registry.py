"""All nouns of this service that have a folder, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from sqlalchemy import Table

import steerserve.nouns as package
from steerserve.nouns.noun import Noun
from steerserve.rules.changes import ACTIONS
from steerserve.rules.events import LiveEvent

ENTRY_POINTS = "steerserve.nouns"
"""The group of entry points under which other packages add nouns of their own."""


@cache
def nouns() -> Mapping[str, Noun[Any]]:
    """The nouns by their names: those of this package, each with a folder here, then those of others.

    Raises:
        ValueError: two nouns have one name.
    """
    found = dict(own_nouns())
    for point in entry_points(group=ENTRY_POINTS):
        noun = point.load()
        if noun.name in found:
            raise ValueError(f"the entry point {point.value} adds a noun {noun.name!r} again")
        found[noun.name] = noun
    return MappingProxyType(found)


@cache
def own_nouns() -> Mapping[str, Noun[Any]]:
    """The nouns of this package by their names."""
    folders = (one.name for one in iter_modules(package.__path__) if one.ispkg)
    return MappingProxyType({folder: _own(folder) for folder in folders})


def _own(folder: str) -> Noun[Any]:
    """The noun of this folder."""
    module = import_module(f"{package.__name__}.{folder}.noun")
    (noun,) = (one for one in vars(module).values() if isinstance(one, Noun) and one.name == folder)
    return noun


@cache
def actions() -> Mapping[tuple[str, str], str]:
    """What the log calls every change that a request may ask for, by method and route."""
    changes = ACTIONS.items(), *(noun.changes.items() for noun in nouns().values())
    return MappingProxyType(dict(chain.from_iterable(changes)))


def events() -> list[type[LiveEvent]]:
    """The live events of all nouns."""
    return [event for noun in nouns().values() for event in noun.events]


def foreign_tables() -> list[Table]:
    """The tables of other packages, which no migration of this package makes."""
    return [
        table for noun in nouns().values() if noun.name not in own_nouns() for table in noun.tables
    ]
