"""Reads files of directions into vectors and probes. No network, and no tensor library. No file is executed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.files.directions.stored import DirectionFile, Found, float32
from steerserve.rules.bounds import DIRECTIONS, VECTOR_FILE_BYTES
from steerserve.rules.steering.vector import (
    Direction,
    ReadDirections,
    ReadOptions,
    checked,
    invalid,
    place,
)

METADATA_MAXIMUM = 1 << 16

Read = TypeVar("Read", bound=ReadDirections)


@dataclass(frozen=True, slots=True)
class Formats(Generic[Read]):
    """The formats of the files of vectors, or of probes. `noun` names one of them in refusals, and `layers` their
    layers.

    `metadata_name` gives the name of the file beside a file that says more about it, and None where there is none.
    `adapters` has the names of files that are of no use beside the file of their adapter, with the name of that file.
    `find` reads a file, and `find_inline` the body of a request. `check` refuses what the noun does not allow.
    `own_fields` gives the fields that `kind` has beside those of `ReadDirections`.
    """

    kind: type[Read]
    noun: str
    layers: str
    metadata_name: Callable[[str], str | None]
    adapters: Mapping[str, str]
    find: Callable[[DirectionFile, ReadOptions], Found]
    find_inline: Callable[[Mapping[str, Any]], Found]
    check: Callable[[str, Found, ReadOptions], None]
    own_fields: Callable[[Found, tuple[float, ...]], dict[str, Any]]

    @property
    def invalid_code(self) -> str:
        """The code of the refusal of a file that cannot be read."""
        return f"INVALID_{self.noun.upper()}"

    def refusal(self, file: str, why: str) -> Refusal:
        """The refusal of a file."""
        return Refusal(self.invalid_code, f"{file} {why}", file=file)

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Inside the block, refuse as INVALID_PROBE what is no probe, with the words and details of INVALID_VECTOR."""
        try:
            yield
        except Refusal as refusal:
            if refusal.code != "INVALID_VECTOR":
                raise
            raise Refusal(self.invalid_code, refusal.message, **refusal.details) from None

    def load(self, named: str, check: local.PathCheck) -> tuple[Path, DirectionFile]:
        """The file that a client names on this machine, and the one beside it that says more about it. `check` refuses
        a path that may not be read.

        Raises:
            Refusal: INVALID_LOCAL_PATH for a path that is no file or is protected; INVALID_VECTOR or INVALID_PROBE for
                a file that is too large, and for a probe beside the adapter that it was trained with.
        """
        check(named)
        path = local.resolve_file(named)
        name, adapter = self.metadata_name(path.name), self.adapters.get(path.name)
        metadata, beside = path.with_name(name or path.name), None
        with local.reading(path.parent):
            has_metadata = name is not None and metadata.is_file()
            has_adapter = adapter is not None and path.with_name(adapter).exists()
        with self.refused():
            if has_metadata:
                check(str(metadata))
                local.resolve_file(str(metadata))
                beside = _content(metadata, METADATA_MAXIMUM)
            file = DirectionFile(path.name, _content(path, VECTOR_FILE_BYTES), beside)
            if has_adapter:
                raise needs_adapter(path.name, adapter)
        return path, file

    def read(self, file: DirectionFile, options: ReadOptions) -> Read:
        """The vector, or the probe, in a file.

        Raises:
            Refusal: INVALID_VECTOR or INVALID_PROBE naming the file, and the tensor or field: a format that is not
                known, a damaged file, what no direction has (see `rules.steering.vector.checked`), a bias that is not
                finite, a probe that is more than a linear classifier of one layer at a time, options that the file
                contradicts.
        """
        with self.refused():
            if len(file.data) > VECTOR_FILE_BYTES:
                raise invalid(file.name, f"is larger than {VECTOR_FILE_BYTES} bytes")
            return self._placed(file.name, self.find(file, options), options)

    def read_inline(self, document: Mapping[str, Any], options: ReadOptions) -> Read:
        """The vector, or the probe, in the body of a request.

        Raises:
            Refusal: INVALID_VECTOR or INVALID_PROBE as `read`.
        """
        with self.refused():
            return self._placed("body", self.find_inline(document), options)

    def _placed(self, file: str, found: Found, options: ReadOptions) -> Read:
        """What was read, with every direction at its layer."""
        if options.layer is not None and found.is_named:
            raise invalid(file, f"says {self.layers}, so that `layer` must be left out")
        if len(found.entries) > DIRECTIONS:
            raise invalid(file, f"has more than {DIRECTIONS} directions")
        self.check(file, found, options)
        convention, offset = options.layer_convention or found.convention, options.layer_offset
        biases: dict[tuple[int, str], float] = {}
        directions: list[tuple[str, Direction]] = []
        for number, (key, index, site, numbers) in enumerate(found.entries):
            where = place(index, site, convention, offset)
            if where is None:
                why = (
                    f"would be before the first layer, or after any, with the layer_convention {convention} and the "
                    f"layer_offset {offset}"
                )
                raise invalid(file, why, key)
            if found.biases and not math.isfinite(found.biases[number]):
                raise invalid(file, "has a bias that is not finite", key)
            biases[where] = found.biases[number] if found.biases else 0.0
            directions.append((key, Direction(*where, float32(file, key, numbers))))
        ordered = checked(file, directions)
        own = self.own_fields(found, tuple(biases[one.layer, one.site] for one in ordered))
        return self.kind(
            format=found.format,
            directions=ordered,
            keys=tuple(key for key, *_ in found.entries),
            layer_convention=convention,
            layer_offset=offset,
            model_hint=found.model_hint,
            warnings=tuple(found.warnings),
            training=found.training,
            **own,
        )


def needs_adapter(file: str, adapter: str | None) -> Refusal:
    return invalid(file, f"needs {adapter}, which no engine here applies")


def _content(path: Path, most: int) -> bytes:
    with local.reading(path.parent), path.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise invalid(path.name, f"is larger than {most} bytes")
    return data
