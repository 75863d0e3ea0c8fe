"""The file of a SQLite database: which of its changes are the service's own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

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


def test_the_log_of_a_replaced_file_is_not_read_into_the_new_one(
    file: SqliteFile, tmp_path: Path
) -> None:
    other, away = tmp_path / "other.db", tmp_path / "away.db"
    write(file, "one")
    file.settle()
    other.write_bytes(file.path.read_bytes())
    write(file, "two")
    file.path.rename(away)
    other.rename(file.path)
    assert file.fault() == sqlite_file.REPLACED
    content = file.path.read_bytes()
    file.close()
    assert file.path.read_bytes() == content
    assert tables(file.path) == {"one"}
    assert tables(away) == {"one", "two"}


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
