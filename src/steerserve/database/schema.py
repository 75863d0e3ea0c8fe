"""Reads the version of the database's schema, copies the database file, and brings the schema up to date."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from steerserve import __version__
from steerserve.database import backup
from steerserve.database.paths import DataFolder
from steerserve.errors import CannotStart

log = structlog.get_logger(__name__)
_MIGRATIONS = Path(__file__).parent / "migrations"
COPIES_KEPT = 3
"""Copies of before upgrades that stay: of each version of the schema the newest, and of these the newest three."""
_TIME_LENGTH = len("20260101T000000Z")


def upgrade(
    connection: Connection, file: Path | None, now: datetime, home: DataFolder | None = None
) -> str:
    """Bring the schema to the version of this program, and return the version. `file` is the SQLite file, which is
    copied first. Stored paths inside the folder `home` become relative. All changes take effect when the caller commits
    the transaction of `connection`, or none.

    Raises:
        CannotStart: a newer version of this program wrote the database.
        OSError: the copy cannot be written.
    """
    newest = versions()[0]
    version = current(connection)
    _check_known(version, file)
    if version == newest:
        return newest
    if version is not None and file is not None:
        _copy(file, version, newest, now)
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["home"] = home
    command.upgrade(config, "head")
    return newest


def current(connection: Connection) -> str | None:
    """The version of the schema; None for a database without tables of ours."""
    return MigrationContext.configure(connection).get_current_revision()


def state(version: str | None, file: Path | None) -> str:
    """What a start of this program would do with a database whose schema has this version, as a clause.

    Raises:
        CannotStart: a newer version of this program wrote the database.
    """
    _check_known(version, file)
    if version is None:
        return "it is empty, and the first start makes its tables"
    newest = versions()[0]
    if version == newest:
        return f"its schema is {version}, that of this version"
    return f"its schema is {version}, and the next start upgrades it to {newest}"


def _check_known(version: str | None, file: Path | None) -> None:
    """Raises:
    CannotStart: a newer version of this program wrote the database.
    """
    known = versions()
    if version is not None and version not in known:
        raise CannotStart(
            f"a newer steerserve wrote it (its schema is {version[:20]!r}, this version knows up to {known[0]!r}): "
            f"install that version again, or name another database in DATABASE_URL{_copy_hint(file, known)}"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


@cache
def versions() -> tuple[str, ...]:
    """The versions of the schema that this program knows, the newest first."""
    scripts = ScriptDirectory.from_config(_config())
    return tuple(script.revision for script in scripts.walk_revisions())


def _copy_hint(file: Path | None, known: Sequence[str]) -> str:
    """The end of the refusal of a newer database: the newest copy that an upgrade left of a schema that this version
    knows, if there is one."""
    copies = [] if file is None else [copy for copy in _copies(file) if _version_of(copy) in known]
    if not copies:
        return ""
    return f"; {copies[0]} is the copy that was made before the upgrade, without later changes"


def _copy(file: Path, version: str, newest: str, now: datetime) -> None:
    """Copy the database into a file beside it, and remove the copies that are no longer needed.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    copy = file.with_name(f"{file.name}.{version}-{now:%Y%m%dT%H%M%SZ}")
    part = copy.with_name(copy.name + backup.PART_ENDING)
    # nobody else makes such copies, because this service holds the database
    for left in file.parent.glob(f"{glob.escape(file.name)}.*Z{backup.PART_ENDING}"):
        left.unlink(missing_ok=True)
    try:
        backup.write_pages(file, part)
        backup.place(part, copy)
    except backup.CannotCopy as error:
        raise OSError(f"the copy {copy} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    log.warning(
        "database_copied", copy=str(copy), schema=version, upgraded_to=newest, build=__version__
    )
    for old in _superseded(_copies(file)):
        old.unlink(missing_ok=True)
        log.info("database_copy_removed", copy=str(old))


def _copies(file: Path) -> list[Path]:
    """The copies that upgrades have left beside the database, the newest first."""
    name = re.compile(re.escape(file.name) + r"\.\d{4}-\d{8}T\d{6}Z")
    copies = [path for path in file.parent.iterdir() if name.fullmatch(path.name)]
    return sorted(copies, key=lambda copy: copy.name[-_TIME_LENGTH:], reverse=True)


def _version_of(copy: Path) -> str:
    """The version of the schema that the name of a copy tells."""
    return copy.name[: -_TIME_LENGTH - 1].rpartition(".")[2]


def _superseded(copies: Sequence[Path]) -> list[Path]:
    """The copies to remove, of those of `_copies`: all but the newest of each version of the schema, and of these all
    but the newest `COPIES_KEPT`. So a start that fails again and again after its copy removes no other one."""
    newest: dict[str, Path] = {}
    for copy in copies:
        newest.setdefault(_version_of(copy), copy)
    kept = list(newest.values())[:COPIES_KEPT]
    return [copy for copy in copies if copy not in kept]
