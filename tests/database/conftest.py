"""A migrated database in a file of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from steerserve.database.db import Database
from tests.blank import DATABASE, lay


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'data' / DATABASE}"


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite+aiosqlite:///"))


@asynccontextmanager
async def opened(url: str, **more: Any) -> AsyncIterator[Database]:
    """A database that is open inside the block."""
    database = Database(url, **more)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def database(url: str, tmp_path: Path) -> AsyncIterator[Database]:
    lay(tmp_path / "data" / DATABASE)
    async with opened(url) as made:
        yield made
