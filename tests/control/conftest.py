"""Fixtures: the control plane on a scripted engine, with the default or other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from steerserve.errors import Refusal
from tests import doubles
from tests.doubles import World
from tests.waiting import soon


class Make(Protocol):
    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[World]: ...


async def refused(work: Awaitable[object]) -> Refusal:
    """The refusal with which the work ends."""
    with pytest.raises(Refusal) as error:
        await soon(work)
    return error.value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with doubles.world(tmp_path) as made:
        yield made


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a control plane with other settings: `async with make(setting=value) as world`."""

    def with_settings(**settings: Any) -> AbstractAsyncContextManager[World]:
        return doubles.world(tmp_path, **settings)

    return with_settings
