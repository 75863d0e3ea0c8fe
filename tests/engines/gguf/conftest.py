"""Fixtures: GGUF files that are written once, and an engine that serves one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from steerserve.engines.gguf.client import GgufEngine
from tests.engines.llamas import Write, loaded, writer


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return writer(tmp_path_factory.mktemp("gguf"))


@pytest.fixture
async def engine(write: Write) -> AsyncIterator[GgufEngine]:
    async with loaded(write()) as (found, _):
        yield found
