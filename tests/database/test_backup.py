"""Copies of the database: made while a service writes, put back, and made by upgrades."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from steerserve import __version__
from steerserve.cli import main
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.nouns.profiles.store import ProfileStore
from tests.blank import DATABASE, lay
from tests.database.test_migrations import MODEL, migrate


def command(home: Path, *arguments: str, **settings: str) -> Result:
    environment = {"STEERSERVE_HOME": str(home), "DATABASE_URL": ""} | settings
    return CliRunner().invoke(main, list(arguments), env=environment)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


def names(file: Path) -> list[str]:
    """The names of the profiles in a whole database, which needs no file beside it."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [name for (name,) in opened.execute("SELECT name FROM profiles ORDER BY name")]


async def test_copies_made_while_the_service_writes_are_whole(
    home: Path, tmp_path: Path, database: Database
) -> None:
    documents, catalog, written = ProfileStore(database), Catalog(database), 0
    place = "/elsewhere/weights"
    await catalog.add_model(
        name="m", source="local", quantization="FP16", local_path=place, status="ready"
    )

    async def write() -> None:
        nonlocal written
        while True:
            steering = {feature: float(written) for feature in range(2000)}
            await documents.add_profile(name=f"{written:05}", steering=steering)
            written += 1

    writing = asyncio.create_task(write())
    copies = [tmp_path / f"{number}.db" for number in range(6)]
    for copy in copies:
        least = written
        made = await asyncio.to_thread(command, home, "backup", str(copy))
        assert (made.exit_code, made.stderr) == (0, "")
        assert least <= len(names(copy)) <= written + 1
    for kept in (str(copies[-1]), "schema", __version__, place, str(home / "models"), "vectors"):
        assert kept in made.stdout
    writing.cancel()
    await asyncio.wait({writing})
    assert copies[0].stat().st_mode == (home / DATABASE).stat().st_mode
    # what the first copy has is put back, and the database of now is kept
    refused = await asyncio.to_thread(command, home, "restore", str(copies[0]))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "a service uses the database" in refused.stderr
    await database.close()
    now = names(home / DATABASE)
    restored = await asyncio.to_thread(command, home, "restore", str(copies[0]))
    assert (restored.exit_code, restored.stderr) == (0, "")
    aside = await asyncio.to_thread(lambda: next(home.glob("steerserve.db.replaced-*Z")))
    assert str(aside) in restored.stdout
    assert names(aside) == now
    assert names(home / DATABASE) == names(copies[0])
    assert not [
        name for folder in (home, tmp_path) for name in os.listdir(folder) if "part" in name
    ]
    await database.open()
    await ProfileStore(database).add_profile(name="after", steering={})


def damaged(copy: Path) -> None:
    content = bytearray(copy.read_bytes())
    for page in range(5, len(content) // 4096):
        content[page * 4096 : page * 4096 + 2000] = os.urandom(2000)
    copy.write_bytes(content)


def changed(statement: str) -> Callable[[Path], None]:
    def change(copy: Path) -> None:
        with closing(sqlite3.connect(copy)) as opened, opened:
            opened.execute(statement)

    return change


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "damaged": (damaged, "is damaged"),
    "cut": (lambda copy: os.truncate(copy, 9000), "is damaged"),
    "text": (lambda copy: copy.write_text("no database " * 500), "is no SQLite database"),
    "empty": (lambda copy: copy.write_bytes(b""), "is no database of steerserve"),
    "another program's": (changed("DROP TABLE alembic_version"), "is no database of steerserve"),
    "newer": (changed("UPDATE alembic_version SET version_num = '9999'"), "a newer steerserve"),
    "away": (Path.unlink, "there is no file"),
}
"""Files that no restore puts in the place of the database, and words of the refusals."""


@pytest.mark.parametrize("fault", REFUSED)
def test_a_restore_refuses_what_is_no_whole_copy_and_changes_nothing(
    home: Path, tmp_path: Path, fault: str
) -> None:
    copy = tmp_path / "copy.db"
    lay(home / DATABASE)
    lay(copy)
    spoil, words = REFUSED[fault]
    spoil(copy)
    before = (home / DATABASE).read_bytes()
    refused = command(home, "restore", str(copy))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert words in refused.stderr
    assert (home / DATABASE).read_bytes() == before
    assert {path.name for path in home.iterdir()} <= {DATABASE, f"{DATABASE}.lock"}


def test_a_restore_keeps_a_database_that_it_replaces_whatever_it_is(
    home: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    lay(copy)
    assert command(home / "new", "restore", str(copy)).exit_code == 0
    assert names(home / "new" / DATABASE) == []
    home.mkdir(exist_ok=True)
    for ending in ("", "-wal", "-shm"):
        (home / f"{DATABASE}{ending}").write_text(f"no database {ending}")
    assert command(home, "restore", str(copy)).exit_code == 0
    assert names(home / DATABASE) == []
    asides = {path.name.partition("Z")[2]: path for path in home.glob("*.replaced-*")}
    assert {ending: path.read_text() for ending, path in asides.items()} == {
        ending: f"no database {ending}" for ending in ("", "-wal", "-shm")
    }


def test_a_backup_writes_over_no_file_that_is_not_meant(home: Path, tmp_path: Path) -> None:
    missing = command(home, "backup", str(tmp_path / "copy.db"))
    assert (missing.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "there is no database" in missing.stderr
    lay(home / DATABASE)
    (there := tmp_path / "there").write_text("kept")
    for target, words in (
        (there, "replace it with --force"),
        (tmp_path, "is a folder"),
        (tmp_path / "away" / "copy.db", "cannot write into"),
    ):
        refused = command(home, "backup", str(target))
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert words in refused.stderr
    assert there.read_text() == "kept"
    for own in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}.lock"):
        refused = command(home, "backup", "--force", str(home / own))
        assert "belongs to the database itself" in refused.stderr
    damaged(home / DATABASE)
    refused = command(home, "backup", "--force", str(there))
    assert "is damaged" in refused.stderr
    assert there.read_text() == "kept"
    (home / DATABASE).unlink()
    lay(home / DATABASE)
    assert command(home, "backup", "--force", str(there)).exit_code == 0
    assert names(there) == []


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_the_program_of_postgresql_is_named(home: Path, name: str) -> None:
    url = "postgresql://user:sentinel@db.example:5433/models?sslmode=require"
    told = command(home, name, "it's.dump", DATABASE_URL=url)
    assert (told.exit_code, told.stdout) == (1, "")
    program = {
        "backup": "pg_dump --format=custom --file",
        "restore": "pg_restore --clean --if-exists --single-transaction",
    }
    assert program[name] in told.stderr
    assert "'postgresql://user@db.example:5433/models?sslmode=require'" in told.stderr
    assert "'it'\"'\"'s.dump'" in told.stderr
    assert "sentinel" not in told.stderr


def test_upgrades_keep_the_newest_copies_and_half_written_ones_go(url: str, home: Path) -> None:
    migrate(url, "0005", MODEL)
    older = [
        f"{DATABASE}.{version}-2026010{day}T000000Z"
        for day, version in enumerate(("0001", "0002", "0003", "0004", "0004"), 1)
    ]
    others = [
        f"{DATABASE}.mine",
        f"{DATABASE}.0001-20260101T000000Z.gz",
        "other.0001-20260101T000000Z",
    ]
    for name in (*older, *others, f"{DATABASE}.0004-20260105T000001Z.part"):
        (home / name).write_text("older")
    asyncio.run(upgrade(url))
    left = {path.name for path in home.iterdir()} - {DATABASE, *others}
    (made,) = home.glob(f"{DATABASE}.0005-*Z")
    assert names_of_models(made) == ["old"]
    assert {name for name in left if name.endswith("Z")} == {made.name, older[2], older[4]}
    assert not [name for name in left if name.endswith(".part")]
    assert all((home / name).exists() for name in others)


async def upgrade(url: str) -> None:
    database = Database(url)
    await database.open()
    await database.close()


def names_of_models(copy: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)) as opened:
        return [name for (name,) in opened.execute("SELECT name FROM models")]
