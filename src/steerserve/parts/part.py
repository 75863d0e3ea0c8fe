"""A part of a request: what a request may ask for beside its goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from steerserve.parts.row_part import RowFacts, RowPart

Form = TypeVar("Form", bound=msgspec.Struct)
Chunk = TypeVar("Chunk", covariant=True)
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Part(Generic[Form, Chunk]):
    """One part.

    Attributes:
        name: names the part on the wire.
        form: what a row gets.
        chunk: the type of what a row gives.
        row: the module and the class that serves a row; only the engine imports it.
    """

    name: str
    form: type[Form]
    chunk: type[Chunk]
    row: str

    def ask(self, form: Form | None) -> dict[str, msgspec.Raw]:
        """The entry of a request that asks for this; no entry where nothing is asked for."""
        return {} if form is None else {self.name: pack(form)}

    def read(self, parts: Mapping[str, msgspec.Raw]) -> Chunk | None:
        """What an outcome has of this part; None where it has nothing."""
        raw = parts.get(self.name)
        return None if raw is None else msgspec.msgpack.decode(raw, type=self.chunk)

    def make_row(self, raw: msgspec.Raw, facts: RowFacts) -> RowPart:
        """What serves a row, in the engine.

        Raises:
            Refusal: the part cannot be had of this row.
        """
        module, name = self.row.split(":")
        made: Any = getattr(import_module(module), name)(
            msgspec.msgpack.decode(raw, type=self.form), facts
        )
        made.name = self.name
        return made  # type: ignore[no-any-return]


def pack(value: object) -> msgspec.Raw:
    """A form, or what a row gives, as it travels."""
    return msgspec.Raw(_pack(value))
