"""Versions of libraries that are publicly known to compute wrong for some models or machines: known_faults.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".toml")

MODEL_KEYS = frozenset({"model_type", "dtype", "rope", "tokenizer"})
MACHINE_KEYS = frozenset({"device", "machine"})

_NUMBER = re.compile(r"\d+")

Facts = Mapping[str, Collection[str]]
"""What holds of a model and its machine, by the keys of `where`."""


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault of the versions from `since` to before `fixed`. `where` has the values of which one has to hold, by
    key."""

    library: str
    since: str
    what: str
    remedy: str
    source: str
    where: Mapping[str, Collection[str]]
    fixed: str | None = None

    @property
    def concerns_a_model(self) -> bool:
        """Whether only some models are concerned."""
        return not MODEL_KEYS.isdisjoint(self.where)

    def has_version(self, version: str) -> bool:
        number = _release(version)
        return _release(self.since) <= number and (
            self.fixed is None or number < _release(self.fixed)
        )

    def holds(self, facts: Facts) -> bool:
        """Whether the fault concerns this model on this machine. A key that is not among the facts does not hold."""
        return all(
            not set(values).isdisjoint(facts.get(key, ())) for key, values in self.where.items()
        )

    def may_hold(self, facts: Facts) -> bool:
        """Whether the fault concerns some model on this machine."""
        return all(
            key in MODEL_KEYS or not set(values).isdisjoint(facts.get(key, ()))
            for key, values in self.where.items()
        )


@cache
def known_faults() -> tuple[KnownFault, ...]:
    return tuple(KnownFault(**each) for each in tomllib.loads(TABLE.read_text("utf-8"))["fault"])


def warnings_for_model(versions: Mapping[str, str], facts: Facts) -> list[str]:
    """A sentence for each fault of the installed versions that concerns this model. Faults of all models are not among
    them: those are the doctor's to tell."""
    return [
        _sentence(fault, version, "is known to compute wrong for this model")
        for fault, version in _installed(versions)
        if fault.concerns_a_model and fault.holds(facts)
    ]


def lines_of_machine(versions: Mapping[str, str], facts: Facts) -> list[str]:
    """A sentence for each fault of the installed versions that may concern a model on this machine."""
    return [
        _sentence(fault, version, f"may compute wrong for {_concerned(fault)}")
        for fault, version in _installed(versions)
        if fault.may_hold(facts)
    ]


def rope_facts(config: Mapping[str, Any]) -> set[str]:
    """The kinds of scaling of positions in a configuration, and the names of its numbers that are not 0. Models with
    several kinds of layers have one scaling for each kind."""
    found: set[str] = set()
    pending = [config.get(key) for key in ("rope_parameters", "rope_scaling")]
    while pending:
        value = pending.pop()
        if not isinstance(value, Mapping):
            continue
        kinds = (value.get("rope_type"), value.get("type"))
        found.update(kind for kind in kinds if isinstance(kind, str))
        found.update(
            key for key, number in value.items() if isinstance(number, int | float) and number
        )
        pending.extend(value.values())
    return found


def _installed(versions: Mapping[str, str]) -> Iterator[tuple[KnownFault, str]]:
    for fault in known_faults():
        version = versions.get(fault.library)
        if version is not None and fault.has_version(version):
            yield fault, version


def _sentence(fault: KnownFault, version: str, predicate: str) -> str:
    remedy = fault.remedy[0].upper() + fault.remedy[1:]
    return f"{fault.library} {version} {predicate}: {fault.what}. {remedy} ({fault.source})"


def _concerned(fault: KnownFault) -> str:
    told = [
        f"{key} {' or '.join(values)}" for key, values in fault.where.items() if key in MODEL_KEYS
    ]
    return f"models with {' and '.join(told)}" if told else "all models"


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release, without what follows them, such as `+cpu` or `.dev0`. A prerelease counts as its
    release."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        match = _NUMBER.match(part)
        if match is None:
            break
        numbers.append(int(match[0]))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
