"""The circuit breakers of calls to the model hub, as health and metrics see them."""

from __future__ import annotations

from typing import Any, Protocol


class Breakers(Protocol):
    """Whoever calls the hub."""

    def breakers(self) -> list[dict[str, Any]]:
        """`{name, state, failure_count, is_open, trips, ...}` for each."""

    def reset(self, name: str) -> dict[str, Any]:
        """The breaker, closed.

        Raises:
            Refusal: BREAKER_NOT_FOUND.
        """
