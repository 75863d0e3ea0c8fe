"""A migrated database in a file of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from steerserve.database.db import Database
from tests.blank import DATABASE, lay


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'data' / DATABASE}"


@pytest.fixture
async def database(url: str, tmp_path: Path) -> AsyncIterator[Database]:
    lay(tmp_path / "data" / DATABASE)
    opened = Database(url)
    await opened.open()
    yield opened
    await opened.close()
