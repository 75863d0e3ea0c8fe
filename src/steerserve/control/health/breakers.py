"""The circuit breakers of calls to the model hub, in the form that health and metrics use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from steerserve.errors import Refusal
from steerserve.rules.models.breaker import BreakerStatus


class Breakers(Protocol):
    """The owner of one or more circuit breakers. Each client of the hub owns one."""

    def breakers(self) -> list[BreakerStatus]:
        """The status of each breaker."""

    def reset(self, name: str) -> BreakerStatus:
        """Close a breaker.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """


class AllBreakers:
    """The circuit breakers of several owners."""

    def __init__(self, owners: Sequence[Breakers]) -> None:
        self._owners = owners

    def breakers(self) -> list[BreakerStatus]:
        """The status of each breaker."""
        return [status for owner in self._owners for status in owner.breakers()]

    def reset(self, name: str) -> BreakerStatus:
        """Close a breaker.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """
        for owner in self._owners:
            if name in [status.name for status in owner.breakers()]:
                return owner.reset(name)
        names = [status.name for status in self.breakers()]
        raise Refusal(
            "BREAKER_NOT_FOUND", f"the breakers are {' and '.join(names)}", available=names
        )
