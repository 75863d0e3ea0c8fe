"""Reads the version of the database's schema, copies the database file, and brings the schema up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from functools import cache
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from steerserve.errors import CannotStart

log = structlog.get_logger(__name__)
_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, file: Path | None, now: datetime) -> str:
    """Bring the schema to the version of this program, and return the version. `file` is the SQLite file, which is
    copied first. All changes take effect when the caller commits the transaction of `connection`, or none.

    Raises:
        CannotStart: a newer version of this program wrote the database.
        OSError: the copy cannot be written.
    """
    known = _versions()
    newest = known[0]
    version = MigrationContext.configure(connection).get_current_revision()
    if version is not None and version not in known:
        raise CannotStart(
            f"a newer steerserve wrote it (its schema is {version[:20]!r}, this version knows up to {newest!r}): "
            f"install that version again, or name another database in DATABASE_URL{_copy_hint(file, known)}"
        )
    if version == newest:
        return newest
    if version is not None and file is not None:
        _copy(file, version, newest, now)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return newest


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


@cache
def _versions() -> tuple[str, ...]:
    """The versions of the schema that this program knows, the newest first."""
    scripts = ScriptDirectory.from_config(_config())
    return tuple(script.revision for script in scripts.walk_revisions())


def _copy_hint(file: Path | None, known: Sequence[str]) -> str:
    """The end of the refusal of a newer database: the newest copy that an upgrade left of a schema that this version
    knows, if there is one."""
    copies = (
        []
        if file is None
        else [copy for version in known for copy in file.parent.glob(f"{file.name}.{version}-*")]
    )
    if not copies:
        return ""
    newest = max(copies, key=lambda copy: (copy.stat().st_mtime_ns, copy.name))
    return f"; {newest} is the copy that was made before the upgrade, without later changes"


def _copy(file: Path, version: str, newest: str, now: datetime) -> None:
    """Copy the database into a file beside it. The copy includes the changes that are still only in SQLite's log.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    copy = file.with_name(f"{file.name}.{version}-{now:%Y%m%dT%H%M%SZ}")
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        raise OSError(f"the copy {copy} cannot be written: {error}") from error
    log.warning("database_copied", copy=str(copy), schema=version, upgraded_to=newest)
