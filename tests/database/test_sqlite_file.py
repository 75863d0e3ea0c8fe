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
