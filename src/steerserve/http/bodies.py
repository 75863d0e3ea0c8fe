"""The memory that bodies of requests have together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from steerserve.errors import Refusal
from steerserve.rules.bodies import Body, displaced
from steerserve.rules.bounds import SMALL_BODY_BYTES
from steerserve.rules.units import MIB

GiveUp = Callable[[], None]


class Bodies:
    """Owner of the bodies that are in memory. A body counts until its request is answered, because the request keeps
    it. Small bodies do not count, so that they have room beside large ones.

    Args:
        most: the bytes of all bodies together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bodies: dict[Body, GiveUp] = {}

    def grow(self, body: Body, size: int, give_up: GiveUp, *, is_whole: bool) -> None:
        """Count further bytes of a body. Where there is no room, `give_up` of this body or of another is called."""
        body.size += size
        body.is_whole = is_whole
        if body.size <= SMALL_BODY_BYTES:
            return
        self._bodies[body] = give_up
        now = asyncio.get_running_loop().time()
        while (other := displaced(self._bodies, body, self._most, now)) is not None:
            self._bodies.pop(other)()
            if other is body:
                return

    def forget(self, body: Body) -> None:
        """The request of a body is over."""
        self._bodies.pop(body, None)

    def refusal(self) -> Refusal:
        """The refusal of a body that was given up."""
        most = self._most // MIB
        why = f"the bodies of requests that are in memory have no room for more; together they have {most} MiB"
        return Refusal("TOO_MANY_BODIES", f"{why}. Send the request again later", limit_mb=most)
