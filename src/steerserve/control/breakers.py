"""The circuit breakers of calls to the model hub, as health and metrics see them."""

from __future__ import annotations

from typing import Protocol

from steerserve.rules.breaker import BreakerStatus


class Breakers(Protocol):
    """The part of the service that calls the hub."""

    def breakers(self) -> list[BreakerStatus]:
        """The status of each breaker."""

    def reset(self, name: str) -> BreakerStatus:
        """Close a breaker.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """
