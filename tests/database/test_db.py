"""The database: migrations, repair after a restart, and faults."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text

from steerserve.database import faults, sqlite_file, watch
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.database.faults import DatabaseFault
from steerserve.database.tables import metadata
from steerserve.errors import CannotStart, Refusal
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.nouns.registry import own_nouns
from tests.database.conftest import file_of, opened
from tests.refusals import refused

MODEL: dict[str, Any] = {"name": "m", "source": "local", "quantization": "FP16"}
SAE: dict[str, Any] = {
    "name": "s",
    "format": "saelens",
    "architecture": "standard",
    "d_in": 8,
    "d_sae": 16,
    "dtype": "float32",
}


@pytest.fixture
async def made(url: str) -> AsyncIterator[Database]:
    """A database that `open` made from nothing."""
    async with opened(url) as database:
        yield database


own_nouns()  # their tables are declared once they are imported


async def test_the_schema_is_made_from_nothing(made: Database) -> None:
    async with made.read() as connection:
        names = await connection.run_sync(lambda sync: set(inspect(sync).get_table_names()))
    assert names == set(metadata.tables) | {"alembic_version"}


async def test_the_migrated_schema_is_the_declared_one(made: Database) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async with made.read() as connection:
        assert await connection.run_sync(differences) == []


async def test_opening_again_keeps_what_is_there(url: str) -> None:
    for count in (1, 2):
        async with opened(url) as database:
            catalog = Catalog(database)
            fields = MODEL | {"name": f"m{count}", "local_path": f"/models/{count}"}
            await catalog.add_model(**fields, status="ready")
            assert len(await catalog.models()) == count


async def test_a_restart_takes_back_what_it_ended(url: str) -> None:
    async with opened(url) as database:
        catalog = Catalog(database)
        for status in ("ready", "loading", "loaded", "downloading", "error"):
            await catalog.add_model(**MODEL | {"name": status}, local_path=status, status=status)
        for status in ("cached", "attached", "downloading", "error"):
            await catalog.add_sae(id=f"sae_{status}", **SAE, local_path=status, status=status)
    async with opened(url) as again:
        catalog = Catalog(again)
        # the status before the restart -> the status after it, and whether the record has a reason
        models = {
            row.name: (row.status, row.error_message is not None) for row in await catalog.models()
        }
        saes = {row.id: (row.status, row.error_message is not None) for row in await catalog.saes()}
    assert models == {
        "ready": ("ready", False),
        "loading": ("ready", False),
        "loaded": ("ready", True),
        "downloading": ("error", True),
        "error": ("error", False),
    }
    assert saes == {
        "sae_cached": ("cached", False),
        "sae_attached": ("cached", True),
        "sae_downloading": ("error", True),
        "sae_error": ("error", False),
    }


async def test_a_full_disk_is_refused_as_such_and_nothing_is_written(database: Database) -> None:
    catalog = Catalog(database)
    await catalog.add_model(**MODEL, status="ready")
    async with database.read() as connection:
        # the pool hands the same connection out again
        await connection.execute(text("PRAGMA max_page_count = 1"))
    fields = MODEL | {"name": "other", "error_message": "x" * 1_000_000}
    refusal = await refused(catalog.add_model(**fields, status="error"))
    assert refusal.code == "DATABASE_UNAVAILABLE"
    assert "disk is full" in refusal.message
    assert [row.status for row in await catalog.models()] == ["ready"]


async def test_an_error_of_this_program_is_not_taken_for_a_fault_of_the_database(
    database: Database,
) -> None:
    with pytest.raises(Exception, match="syntax error"):
        async with database.write() as connection:
            await connection.execute(text("DELETE FORM models"))
    assert await database.fault() is None


async def test_a_write_that_fails_is_taken_back_whole(database: Database) -> None:
    catalog = Catalog(database)
    await catalog.add_model(**MODEL, status="ready")

    async def forget_all_and_fail() -> None:
        async with database.write() as connection:
            await connection.execute(text("DELETE FROM models"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await forget_all_and_fail()
    assert len(await catalog.models()) == 1


async def test_the_database_is_checked_once_a_second_at_most(url: str) -> None:
    now = 0.0
    async with opened(url, clock=lambda: now) as database:
        assert await database.fault() is None
        file_of(url).unlink()
        now = 0.9
        assert await database.fault() is None
        now = 1.0
        fault = await database.fault()
        assert fault is not None
        assert "is gone" in fault.reason
        assert not file_of(url).exists()


async def test_a_writer_that_does_not_end_is_a_fault(database: Database, url: str) -> None:
    with closing(sqlite3.connect(file_of(url))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await database.fault() == faults.LOCKED


async def test_a_check_beside_a_write_does_not_end_a_fault_of_writes(url: str) -> None:
    seconds = itertools.count(step=watch.CHECK_SECONDS)
    async with opened(url, clock=lambda: next(seconds)) as database:
        with closing(sqlite3.connect(file_of(url))) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await database.fault() == faults.LOCKED
            async with database._writing:
                assert await database.fault() == faults.LOCKED
        async with database._writing:
            assert await database.fault() == faults.LOCKED
        assert await database.fault() is None


async def test_a_second_service_on_one_file_does_not_start(url: str, database: Database) -> None:
    second = Database(url)
    with pytest.raises(CannotStart, match="another steerserve uses it") as refused:
        await second.open()
    assert str(file_of(url)) in str(refused.value)
    await database.close()
    await second.open()
    await second.close()


def other_names(file: Path) -> list[Path]:
    """A symbolic link to the file, a path through a linked folder, and a hard link."""
    link, folder, hard = (file.parent.with_name(name) for name in ("link.db", "folder", "hard.db"))
    link.symlink_to(file)
    folder.symlink_to(file.parent)
    hard.hardlink_to(file)
    return [link, folder / file.name, hard]


async def test_a_second_service_does_not_start_on_another_name_of_the_file(
    url: str, database: Database
) -> None:
    # in a process of its own, because closing a file drops the locks that its process has on the file
    code = (
        "import asyncio, sys; from steerserve.database.db import Database\n"
        "for file in sys.argv[1:]:\n"
        "    try: asyncio.run(Database(f'sqlite+aiosqlite:///{file}').open())\n"
        "    except Exception as error: print(error)\n"
    )
    names = [str(name) for name in other_names(file_of(url))]
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *names, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await second.communicate()
    sentences = output.decode().splitlines()
    assert [name for name, sentence in zip(names, sentences, strict=True) if name in sentence] == (
        names
    )
    assert all("another steerserve uses it" in sentence for sentence in sentences)
    await Catalog(database).add_model(**MODEL, status="ready")


async def test_a_link_to_a_database_opens_it_and_changes_it(url: str, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.db"
    file_of(url).parent.mkdir()
    file_of(url).symlink_to(real)
    for count in range(2):
        async with opened(url) as database:
            assert len(await Catalog(database).models()) == count
            await Catalog(database).add_model(**MODEL | {"name": f"m{count}"}, status="ready")
            assert await database.fault() is None
    with closing(sqlite3.connect(real)) as connection:
        assert connection.execute("SELECT count(*) FROM models").fetchone() == (2,)


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_file_that_is_moved_and_linked_back_is_a_replaced_one_and_stays_whole(
    database: Database, url: str, is_settled: bool
) -> None:
    made = await Catalog(database).add_model(**MODEL, status="ready")
    if is_settled:
        assert database._file is not None
        assert database._file.settle() is None
    real = file_of(url).with_name("real.db")
    file_of(url).rename(real)
    file_of(url).symlink_to(real)
    refusal = await refused(ProfileStore(database).add_profile(name="calm", steering={}))
    assert refusal.code == "DATABASE_UNAVAILABLE"
    assert await database.fault() == sqlite_file.REPLACED
    await database.close()
    async with opened(url) as again:
        assert await Catalog(again).models() == (made,)


async def test_a_connection_that_a_link_leads_elsewhere_reads_nothing(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database._file is not None
    real = file_of(url).with_name("real.db")
    file_of(url).rename(real)
    file_of(url).symlink_to(real)
    # the link comes after the check of the path
    monkeypatch.setattr(database._file, "fault", lambda: None)
    refusal = await refused(ProfileStore(database).page(1))
    assert refusal.details["reason"] == faults.CLOSED_FILE.reason
    assert not real.with_name("real.db-wal").exists()


async def test_opening_an_open_database_does_nothing(database: Database) -> None:
    made = await Catalog(database).add_model(**MODEL, status="loaded")
    await database.open()
    assert (await Catalog(database).model(made.id)).status == "loaded"


@pytest.mark.parametrize("content", [b"this is not a database file at all" * 100, b"\0" * 8192])
async def test_a_damaged_file_does_not_open_and_stays_as_it_is(url: str, content: bytes) -> None:
    file = file_of(url)
    file.parent.mkdir()
    file.write_bytes(content)
    database = Database(url)
    with pytest.raises(CannotStart, match="not a database; the file is damaged") as refused:
        await database.open()
    assert str(file) in str(refused.value)
    assert file.read_bytes() == content


def older_schema(file: Path) -> None:
    other = file.with_name("other.db")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE models (id INTEGER)")
    other.replace(file)


def another_text(file: Path) -> None:
    other = file.with_name("text")
    other.write_text("a text" * 1000)
    other.replace(file)


def overwrite(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def cut(file: Path) -> None:
    os.truncate(file, 5000)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (older_schema, sqlite_file.REPLACED),
        (another_text, sqlite_file.REPLACED),
        (overwrite, sqlite_file.OVERWRITTEN),
        (cut, sqlite_file.OVERWRITTEN),
    ],
)
async def test_a_file_that_is_not_the_one_that_was_opened_is_neither_read_nor_written(
    database: Database, url: str, damage: Callable[[Path], None], fault: DatabaseFault
) -> None:
    catalog, documents = Catalog(database), ProfileStore(database)
    await catalog.add_model(**MODEL, status="ready")
    damage(file_of(url))
    content = file_of(url).read_bytes()
    for access in (documents.page(200), documents.add_profile(name="calm", steering={})):
        assert (await refused(access)).code == "DATABASE_UNAVAILABLE"
    assert await database.fault() == fault
    assert fault.needs_restart
    assert [row.name for row in await catalog.models()] == ["m"]
    await database.close()
    assert file_of(url).read_bytes() == content


async def test_a_file_that_is_overwritten_during_a_read_is_told_as_overwritten(
    database: Database, url: str
) -> None:
    async def overwrite_and_read() -> None:
        async with database.read():
            overwrite(file_of(url))
            # the driver finds no database in the file, as a connection does that is made in this moment
            with closing(sqlite3.connect(file_of(url))) as connection:
                connection.execute("SELECT * FROM models")

    await Catalog(database).add_model(**MODEL, status="ready")
    assert (await refused(overwrite_and_read())).details["reason"] == sqlite_file.OVERWRITTEN.reason
    assert await database.fault() == sqlite_file.OVERWRITTEN


async def test_a_log_of_sqlite_that_was_replaced_stops_all_and_loses_nothing(
    database: Database, url: str
) -> None:
    made = await Catalog(database).add_model(**MODEL, status="ready")
    log = file_of(url).with_name(file_of(url).name + "-wal")
    log.unlink()
    log.touch()
    assert await database.fault() == sqlite_file.LOG_REPLACED
    with pytest.raises(Refusal):
        await ProfileStore(database).add_profile(name="calm", steering={})
    await database.close()
    async with opened(url) as again:
        assert await Catalog(again).models() == (made,)


async def test_a_write_into_a_file_that_is_deleted_before_its_end_is_not_acknowledged(
    database: Database, url: str
) -> None:
    async def write_and_delete() -> None:
        async with database.write() as connection:
            await connection.execute(text("DELETE FROM models"))
            file_of(url).unlink()

    assert (await refused(write_and_delete())).code == "DATABASE_UNAVAILABLE"
    assert not file_of(url).exists()


async def test_a_write_that_may_have_taken_effect_is_read_again_once_the_fault_is_over(
    url: str,
) -> None:
    now = itertools.count()
    async with opened(url, clock=lambda: next(now)) as database:
        catalog, away = Catalog(database), file_of(url).with_name("away.db")
        made = await catalog.add_model(**MODEL, status="ready")

        def rename(*_: Any) -> None:
            file_of(url).rename(away)

        # the file leaves after the commit and before the answer
        event.listen(database._engine.sync_engine, "commit", rename)
        with pytest.raises(Refusal):
            await catalog.change_model(made.id, status="error")
        assert (await catalog.model(made.id)).status == "ready"
        away.rename(file_of(url))
        assert await database.fault() is None
        assert (await catalog.model(made.id)).status == "error"


async def test_a_lock_file_that_was_deleted_is_made_again_and_still_keeps_others_out(
    url: str,
) -> None:
    now = itertools.count()
    database, second = Database(url, clock=lambda: next(now)), Database(url)
    await database.open()
    lock = file_of(url).with_name(file_of(url).name + ".lock")
    lock.unlink()
    assert await database.fault() is None
    with pytest.raises(CannotStart, match="another steerserve uses it"):
        await second.open()
    lock.unlink()
    await second._hold.try_acquire()
    fault = await database.fault()
    assert fault is not None
    assert (fault.reason, fault.needs_restart) == ("another steerserve has taken it", True)
    await second.close()
    await database.close()


async def test_a_check_that_does_not_end_is_a_fault_and_is_not_begun_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = asyncio.Event(), []

    async def wait() -> None:
        begun.append(1)
        await held.wait()

    monkeypatch.setattr(watch, "CHECK_PATIENCE", 0.01)
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(database._watch, "_examine", wait)
    for _ in range(3):
        assert await database.fault() == faults.SILENT
        with pytest.raises(Refusal):
            (await ProfileStore(database).page(200))[0]
    assert begun == [1]
    held.set()
    monkeypatch.setattr(watch, "CHECK_PATIENCE", 5)
    assert await database.fault() is None


async def test_a_damaged_file_with_a_sound_head_does_not_open(url: str) -> None:
    database = Database(url)
    await database.open()
    for number in range(40):
        fields = MODEL | {"name": f"m{number}", "error_message": "x" * 3000}
        await Catalog(database).add_model(**fields, status="error")
    await database.close()
    with file_of(url).open("r+b") as file:
        file.seek(6 * 4096)
        file.write(b"\xff" * 4096 * 20)
    with pytest.raises(CannotStart, match="damaged") as refused:
        await database.open()
    assert "put a copy in its place" in str(refused.value)


async def test_a_file_that_cannot_be_made_does_not_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", "/proc/self"):
        database = Database(f"sqlite+aiosqlite:///{folder}/steerserve.db")
        with pytest.raises(CannotStart, match="check the file and its folder"):
            await database.open()


async def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        database = Database(f"postgresql+asyncpg://user:sentinel@127.0.0.1:{port}/models")
        with pytest.raises(CannotStart, match=f"'models' of 127.0.0.1:{port}") as refused:
            await database.open()
    assert "sentinel" not in str(refused.value)
    assert "DATABASE_URL" in str(refused.value)
