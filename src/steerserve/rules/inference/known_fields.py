"""The fields of objects in the bodies of `/v1` that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OfType:
    """An object whose field `type` says which other fields it may have: the fields `more` if its type is `type`, and
    none if it has another type."""

    type: str
    more: Mapping[str, Any]

    def read_of(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of this object that are read, as `Known` has them."""
        more = self.more if value.get("type") == self.type else {}
        return {"type": None, **more}


Known = Mapping[str, Any] | OfType
"""The fields of an object that are read -> the fields of their values that are read; None means any fields."""
