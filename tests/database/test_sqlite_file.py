"""The file of a SQLite database: which of its changes are the service's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from steerserve.database import sqlite_file
from steerserve.database.sqlite_file import SqliteFile


@pytest.fixture
def file(tmp_path: Path) -> SqliteFile:
    made = SqliteFile(tmp_path / "steerserve.db", 1000)
    made.open(may_make=True)
    return made


def write(file: SqliteFile, table: str) -> None:
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute(f"CREATE TABLE {table} (a)")


def test_a_file_that_is_moved_away_while_changes_are_brought_into_it_may_come_back(
    file: SqliteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, "one")
    away = tmp_path / "away.db"
    empty = file._empty_log

    def then_move() -> bool:
        is_empty = empty()
        file.path.rename(away)
        return is_empty

    monkeypatch.setattr(file, "_empty_log", then_move)
    file.settle()
    monkeypatch.undo()
    assert file.fault() == sqlite_file.GONE
    away.rename(file.path)
    assert file.fault() is None
    write(file, "two")
    assert file.settle() is None
    file.close()


def test_a_change_of_another_program_is_found_after_a_settling(file: SqliteFile) -> None:
    write(file, "one")
    assert file.settle() is None
    assert file.fault() is None
    file.path.write_bytes(file.path.read_bytes() + b"x")
    assert file.fault() == sqlite_file.OVERWRITTEN
    file.close()


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


Move = Callable[[SqliteFile, Path], None]
"""Moves the file to another place, and may put something into its place."""


def leave_nothing(file: SqliteFile, away: Path) -> None:
    file.path.rename(away)


def replace(file: SqliteFile, away: Path) -> None:
    file.path.rename(away)
    away.with_name("copy.db").rename(file.path)


def restore(file: SqliteFile, away: Path) -> None:
    """As the manual of SQLite has it: the log is deleted before a copy takes the place."""
    file.path.rename(away)
    for ending in sqlite_file.LOG_ENDINGS:
        file.path.with_name(file.path.name + ending).unlink()
    away.with_name("copy.db").rename(file.path)


@pytest.fixture
def moved(file: SqliteFile, tmp_path: Path) -> Path:
    """Where the file will be. Beside it is a copy of the file from before its last change, which is in the log."""
    write(file, "one")
    file.settle()
    (tmp_path / "copy.db").write_bytes(file.path.read_bytes())
    write(file, "two")
    return tmp_path / "away.db"


@pytest.mark.parametrize("move", [leave_nothing, replace, restore])
def test_the_last_changes_go_into_the_file_wherever_it_is(
    file: SqliteFile, moved: Path, move: Move
) -> None:
    move(file, moved)
    is_there = file.path.exists()
    assert file.fault() == (sqlite_file.REPLACED if is_there else sqlite_file.GONE)
    file.close()
    assert tables(moved) == {"one", "two"}
    assert file.path.exists() is is_there
    assert not is_there or tables(file.path) == {"one"}


def test_changes_that_a_reader_keeps_in_the_log_are_put_aside(
    file: SqliteFile, moved: Path
) -> None:
    with closing(sqlite3.connect(file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM one").fetchall()
        write(file, "three")
        replace(file, moved)
        with capture_logs() as lines:
            file.close()
    assert [line["event"] for line in lines] == ["database_log_put_aside"]
    assert tables(file.path) == {"one"}
    Path(lines[0]["path"]).rename(moved.with_name(moved.name + "-wal"))
    assert tables(moved) == {"one", "two", "three"}


def test_changes_that_cannot_be_brought_into_a_file_that_is_gone_are_told(
    file: SqliteFile, moved: Path
) -> None:
    with closing(sqlite3.connect(file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM one").fetchall()
        write(file, "three")
        leave_nothing(file, moved)
        with capture_logs() as lines:
            file.close()
    assert [line["event"] for line in lines] == ["database_changes_left"]
    moved.rename(file.path)
    assert tables(file.path) == {"one", "two", "three"}


def test_a_file_whose_name_leads_elsewhere_now_is_closed_as_ever(tmp_path: Path) -> None:
    (tmp_path / "name.db").symlink_to(tmp_path / "real.db")
    file = SqliteFile(tmp_path / "name.db", 1000)
    file.open(may_make=True)
    write(file, "one")
    (tmp_path / "name.db").unlink()
    (tmp_path / "name.db").symlink_to(tmp_path / "other.db")
    (tmp_path / "other.db").touch()
    assert file.fault() == sqlite_file.REPLACED
    file.close()
    assert tables(tmp_path / "real.db") == {"one"}
    assert not (tmp_path / "real.db-wal").exists()


def test_the_log_that_came_with_another_file_stays(file: SqliteFile, tmp_path: Path) -> None:
    other = SqliteFile(tmp_path / "other.db", 1000)
    other.open(may_make=True)
    write(other, "theirs")
    for ending in ("", *sqlite_file.LOG_ENDINGS):
        other.path.with_name(other.path.name + ending).rename(
            file.path.with_name(file.path.name + ending)
        )
    assert file.fault() == sqlite_file.REPLACED
    file.close()
    assert tables(file.path) == {"theirs"}
