"""The fields of objects in the bodies of `/v1` that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OfType:
    """The fields of objects that have the field `type`. Only those of this type have others, which are `more`."""

    type: str
    more: Mapping[str, Any]

    def read_of(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of this object that are read, as `Known` has them."""
        more = self.more if value.get("type") == self.type else {}
        return {"type": None, **more}


Known = Mapping[str, Any] | OfType
"""The fields of an object that are read -> the fields of their values that are read; None means any fields."""
