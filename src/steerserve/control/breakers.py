"""The circuit breakers of calls to the model hub, in the form that health and metrics use."""

from __future__ import annotations

from typing import Protocol

from steerserve.rules.breaker import BreakerStatus


class Breakers(Protocol):
    """The owner of the circuit breakers, which is the client of the hub."""

    def breakers(self) -> list[BreakerStatus]:
        """The status of each breaker."""

    def reset(self, name: str) -> BreakerStatus:
        """Close a breaker.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """
