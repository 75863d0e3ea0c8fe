"""What lies at a source: the files of a folder or one file, their configurations field by field, and what the name tells."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steerserve.engine.wire.messages import SaeSource
from steerserve.engine.worker.sae.files import SUFFIXES, Tensors, open_tensors, read_json
from steerserve.errors import Refusal
from steerserve.rules import sae_names

BESIDES = ("sparsity.safetensors", "activation_whitening.safetensors")
"""Files of tensors that lie beside an SAE and are none."""

LARGEST = 1 << 31
"""Whole numbers of configurations stay below this: nothing that is counted here comes near it."""

LONGEST = 500
"""Most characters of a text of a configuration."""

BELOW = "checkpoints/final.safetensors"

LOCAL_PARTS = 6
"""Folders of a local path that may tell of the SAE: those further up are the operator's own."""


@dataclass(frozen=True, slots=True)
class StatedSize:
    """A size that a configuration states: `kind` is `d_in` or `d_sae`, `name` the field that states it."""

    kind: str
    file: str
    name: str
    value: int


class Fields:
    """A configuration's fields. Each is checked for its kind; None where there is none.

    The methods take several names and answer for the first that has a value.

    Raises:
        Refusal: SAE_LOAD_FAILED for a value of another kind, naming the file and the field.
    """

    def __init__(self, file: str, values: dict[str, Any]) -> None:
        self.file = file
        self.values = values

    def has(self, *names: str) -> bool:
        return any(self.values.get(name) is not None for name in names)

    def inner(self, name: str) -> Fields:
        """The object under `name`; an empty one where there is none."""
        value = self.values.get(name)
        return Fields(self.file, value if isinstance(value, dict) else {})

    def text(self, *names: str) -> str | None:
        name, value = self._first(names)
        if value is not None and not (isinstance(value, str) and _is_plain(value)):
            raise self._wrong(name, value, f"text of at most {LONGEST} characters")
        return value or None

    def flag(self, *names: str) -> bool | None:
        name, value = self._first(names)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def number(self, *names: str) -> float | None:
        """A finite number."""
        name, value = self._first(names)
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) < sys.float_info.max:
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def index(self, *names: str) -> int | None:
        """A whole number from 0 and below LARGEST; None for anything else."""
        _, value = self._first(names)
        return value if type(value) is int and 0 <= value < LARGEST else None

    def sizes(self, d_in: str, d_sae: str) -> tuple[StatedSize, ...]:
        """The sizes that the fields of these names state, where they are whole numbers of at least 1."""
        stated = (
            (kind, name, self.index(name)) for kind, name in (("d_in", d_in), ("d_sae", d_sae))
        )
        return tuple(
            StatedSize(kind, self.file, name, value) for kind, name, value in stated if value
        )

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def _wrong(self, name: str, value: Any, expected: str) -> Refusal:
        return Refusal(
            "SAE_LOAD_FAILED",
            f"{self.file}: {name} must be {expected}, found {shown(value)[:60]}",
            field=name,
        )


@dataclass(slots=True)
class SourceFiles:
    """The files at a source.

    Attributes:
        folder: where they lie.
        only: the one weights file that is meant, where the source is a file.
        name: `owner/repository/path`, or the last folders of a local path.
    """

    folder: Path
    only: str | None
    name: str
    _opened: dict[Path, Tensors] = field(default_factory=dict)

    def weights(self, *names: str) -> Tensors | None:
        """The first of these files that is there, opened; a source that is a file must be it."""
        for name in names:
            path = self.path_of(name)
            if path is not None and self.only in (None, path.name):
                return self._open(path)
        return None

    def single(self) -> Tensors | None:
        """The only weights file at the source."""
        names = [self.only] if self.only else self.candidates()
        return self._open(self.folder / names[0]) if len(names) == 1 else None

    def candidates(self) -> list[str]:
        """Names of the files that could hold an SAE's tensors."""
        names = ((name, name.lower()) for name in self.listing())
        return [name for name, low in names if low.endswith(SUFFIXES) and low not in BESIDES]

    def config(self, name: str) -> Fields | None:
        """A JSON file beside the weights, None where it is not there."""
        path = self.path_of(name)
        return Fields(path.name, read_json(path)) if path is not None else None

    def has(self, *names: str) -> bool:
        """Whether one of these files is beside the weights."""
        return any(self.path_of(name) is not None for name in names)

    def listing(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        # of any other folder the names are nobody's business
        kinds = (*SUFFIXES, ".json", ".yaml")
        found = (path.name for path in self.folder.iterdir() if path.is_file())
        return sorted(shown(name) for name in found if name.lower().endswith(kinds))

    def in_name(self, pattern: str) -> re.Match[str] | None:
        """The last place in the name that fits the pattern, whatever the case."""
        found = list(re.finditer(pattern, self.name, re.IGNORECASE))
        return found[-1] if found else None

    def number_in_name(self, pattern: str) -> int | None:
        """The number that the name tells by the pattern's first group."""
        found = self.in_name(pattern)
        return int(found[1]) if found else None

    def path_of(self, name: str) -> Path | None:
        """Where a file of the folder lies; None where there is none.

        Raises:
            Refusal: SAE_LOAD_FAILED when several files have the name and differ in letter case only.
        """
        return file_in(self.folder, name)

    @property
    def layer(self) -> int | None:
        """The layer that the name tells."""
        return sae_names.layer_in(self.name)

    @property
    def l0(self) -> float | None:
        """The mean number of active features that the name tells."""
        number = sae_names.l0_in(self.name)
        return float(number) if isinstance(number, int) else None

    def _open(self, path: Path) -> Tensors:
        if path not in self._opened:
            self._opened[path] = open_tensors(path)
        return self._opened[path]


def file_in(folder: Path, name: str) -> Path | None:
    """The file of this name below a folder, or else the one whose name differs from it in letter case only.

    Raises:
        Refusal: SAE_LOAD_FAILED when there is none of exactly this name and several differ in letter case only.
    """
    place = folder
    for part in name.split("/"):
        if not (place / part).exists():
            others = place.iterdir() if place.is_dir() else iter(())
            alike = sorted(other.name for other in others if other.name.lower() == part.lower())
            if len(alike) > 1:
                shown_names = ", ".join(map(shown, alike[:5]))
                raise Refusal(
                    "SAE_LOAD_FAILED",
                    f"{shown_names} differ in letter case only, and {part} is looked for; rename one of them",
                )
            if not alike:
                return None
            part = alike[0]
        place = place / part
    return place if place.is_file() else None


def look(source: SaeSource) -> SourceFiles:
    """The files at a source.

    Raises:
        Refusal: SAE_LOAD_FAILED when nothing is there.
    """
    path = Path(source.path)
    is_local = source.name == source.path
    name = "/".join(path.parts[-LOCAL_PARTS:]) if is_local else source.name
    if path.is_file():
        # Llama Scope keeps its weights one folder below their configuration
        above = path.parent.parent
        is_below = "/".join(path.parts[-2:]).lower() == BELOW and file_in(above, "hyperparams.json")
        return SourceFiles(above if is_below else path.parent, path.name, name)
    if not path.is_dir():
        raise Refusal("SAE_LOAD_FAILED", f"there is nothing at {path.name!r}")
    return SourceFiles(path, None, name)


def shown(value: object) -> str:
    """A name or value as text that any encoding takes, and not too long."""
    text = value if isinstance(value, str) else ascii(value)[: 2 * LONGEST]
    return text[:LONGEST].encode("utf-8", "backslashreplace").decode()


def _is_plain(text: str) -> bool:
    """Whether it is short enough, and has no halves of characters, which no encoding takes."""
    return len(text) <= LONGEST and not any("\ud800" <= char <= "\udfff" for char in text)
