"""An empty database of the present schema. It is made once per process and copied for each test, because the migrations
from nothing take five times as long as the opening of a copy."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine

from steerserve.database import schema

DATABASE = "steerserve.db"
"""The name of the database in the data folder of a service."""


def lay(file: Path) -> None:
    """Put an empty database at this path, unless a file is there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_empty())


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            schema.upgrade(connection, None, datetime.now(UTC))
        engine.dispose()
        return file.read_bytes()
