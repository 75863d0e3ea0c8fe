"""The refusal with which work ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from steerserve.errors import Refusal


async def refused(work: Awaitable[object]) -> Refusal:
    with pytest.raises(Refusal) as raised:
        await work
    return raised.value


def refusal_of(step: Callable[..., object], *given: object, **named: object) -> Refusal:
    with pytest.raises(Refusal) as raised:
        step(*given, **named)
    return raised.value
