"""The files of one SAE: a folder or one file, the fields of its configurations, and the facts that its name gives."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.messages import SaeSource
from steerserve.rules.saes import names as sae_names
from steerserve.worker.sae.files import SUFFIXES, Tensors, open_tensors, read_json

BESIDES = ("sparsity.safetensors", "activation_whitening.safetensors")
"""Files with tensors that lie beside an SAE and are not the SAE."""

LARGEST = 1 << 31
"""Whole numbers in configurations are below this. No real size or count comes near it."""

LONGEST = 500
"""The most characters that a text in a configuration may have."""

BELOW = "checkpoints/final.safetensors"
"""Weights that lie one folder below their configuration."""

LOCAL_PARTS = 6
"""The last folders of a local path may describe the SAE. Folders further up are the operator's own."""


@dataclass(frozen=True, slots=True)
class StatedSize:
    """A size that a configuration states: `kind` is `d_in` or `d_sae`, `name` the field that states it."""

    kind: str
    file: str
    name: str
    value: int


class Fields:
    """The fields of a configuration, each checked for its type. An absent field is None.

    The methods take several names and answer for the first name that has a value.

    Raises:
        Refusal: SAE_LOAD_FAILED for a value of another type; the message names the file and the field.
    """

    def __init__(self, file: str, values: dict[str, object]) -> None:
        self.file = file
        self.values = values

    def has(self, *names: str) -> bool:
        return any(self.values.get(name) is not None for name in names)

    def inner(self, name: str) -> Fields:
        """The fields of the object under `name`; no fields where there is no object."""
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
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not abs(value) < sys.float_info.max
        ):
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

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def _wrong(self, name: str, value: object, expected: str) -> Refusal:
        return Refusal(
            "SAE_LOAD_FAILED",
            f"{self.file}: {name} must be {expected}, and is {shown(value)[:60]}",
            field=name,
        )


@dataclass(slots=True)
class SourceFiles:
    """The files at a source.

    Attributes:
        folder: the folder that holds them.
        only: the weights file to use, where the source is a file and not a folder.
        name: `owner/repository/path`, or the last folders of a local path.
    """

    folder: Path
    only: str | None
    name: str
    _opened: dict[Path, Tensors] = field(default_factory=dict)

    def weights(self, *names: str) -> Tensors | None:
        """The first of these files that exists, opened. If the source is a file, only that file counts."""
        for name in names:
            path = self.path_of(name)
            if path is not None and self.only in (None, path.name):
                return self._open(path)
        return None

    def single(self) -> Tensors | None:
        """The weights file at the source, if there is exactly one."""
        names = [self.only] if self.only else self.candidates()
        return self._open(self.folder / names[0]) if len(names) == 1 else None

    def candidates(self) -> list[str]:
        """The names of the files that could hold the tensors of an SAE."""
        names = ((name, name.lower()) for name in self.listing())
        return [name for name, low in names if low.endswith(SUFFIXES) and low not in BESIDES]

    def config(self, name: str) -> Fields | None:
        """The fields of a JSON file beside the weights; None where there is no such file."""
        path = self.path_of(name)
        return Fields(path.name, read_json(path)) if path is not None else None

    def has(self, *names: str) -> bool:
        """Whether one of these files is beside the weights."""
        return any(self.path_of(name) is not None for name in names)

    def listing(self) -> list[str]:
        """The names of the weights and configuration files in the folder."""
        if not self.folder.is_dir():
            return []
        # other names in the operator's folder are private, so that no message may list them
        kinds = (*SUFFIXES, ".json", ".yaml")
        names = (path.name for path in self.folder.iterdir() if path.is_file())
        return sorted(shown(name) for name in names if name.lower().endswith(kinds))

    def in_name(self, pattern: str) -> re.Match[str] | None:
        """The last match of the pattern in the name, in any letter case."""
        matches = list(re.finditer(pattern, self.name, re.IGNORECASE))
        return matches[-1] if matches else None

    def number_in_name(self, pattern: str) -> int | None:
        """The number in the first group of the pattern's last match in the name."""
        match = self.in_name(pattern)
        return int(match[1]) if match else None

    def path_of(self, name: str) -> Path | None:
        """Where a file of the folder lies; None where there is none.

        Raises:
            Refusal: SAE_LOAD_FAILED when several files have the name and differ in letter case only.
        """
        return file_in(self.folder, name)

    @property
    def layer(self) -> int | None:
        """The layer that the name gives."""
        return sae_names.layer_in(self.name)

    @property
    def l0(self) -> float | None:
        """The mean number of active features that the name gives."""
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
        Refusal: SAE_LOAD_FAILED when the path does not exist.
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
    """A name or a value as a short text that every encoding can hold."""
    text = value if isinstance(value, str) else ascii(value)[: 2 * LONGEST]
    return text[:LONGEST].encode("utf-8", "backslashreplace").decode()


def _is_plain(text: str) -> bool:
    """Whether the text is short enough and has no half of a surrogate pair, which no encoding can hold."""
    return len(text) <= LONGEST and not any("\ud800" <= char <= "\udfff" for char in text)
