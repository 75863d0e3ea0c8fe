"""Answers that are files are read from the database in parts of bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from steerserve.database.batches import BatchStore, LineAnswer
from steerserve.database.by_bytes import Portion, portions
from steerserve.database.catalog import utc_now
from steerserve.database.db import Database
from steerserve.database.files import FileStore
from steerserve.database.room import UNBOUNDED
from steerserve.errors import Refusal
from steerserve.nouns.runs.store import RunStore
from steerserve.rules.bounds import STORED_READ_BYTES
from tests.nouns.runs.test_store import new

K = STORED_READ_BYTES // 4
LINES = [b"a" * K, b"b" * K, b"c" * (9 * K + 1), b"d", b"e" * (4 * K), b"f"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([K, K, K], [(1, 3)]),
        ([4 * K, 1], [(1, 1), (2, 2)]),
        ([K, 9 * K, K, K], [(1, 1), (2, 2), (3, 4)]),
        ([1, 4 * K, 1], [(1, 1), (2, 2), (3, 3)]),
    ],
)
def test_rows_are_read_in_portions_of_bounded_size(
    sizes: list[int], expected: list[tuple[int, int]]
) -> None:
    found: list[Portion] = list(portions(enumerate(sizes, 1)))
    assert [portion[:2] for portion in found] == expected
    assert sum(portion.size for portion in found) == sum(sizes)


async def _output(database: Database) -> tuple[AsyncIterator[bytes], str]:
    files = FileStore(database, UNBOUNDED, utc_now)
    store = BatchStore(database, UNBOUNDED, utc_now)
    file = await files.add("x", b"{}", datetime(2100, 1, 1, tzinfo=UTC))
    batch = await store.add("/v1/completions", file.id, "c", None, None, timedelta(days=1), 9)
    for start in (0, 2, 4):
        lines = enumerate(LINES[start : start + 2], start)
        await store.keep(batch.id, [LineAnswer(number, False, line) for number, line in lines])
    return store.lines(batch.id, are_failed=False), batch.id


async def test_stored_lines_are_read_by_their_bytes(database: Database) -> None:
    whole = b"".join(line + b"\n" for line in LINES)
    output, _ = await _output(database)
    parts = [part async for part in output]
    assert b"".join(parts) == whole
    assert max(map(len, parts)) <= STORED_READ_BYTES + 4

    runs = RunStore(database, days=1, most_mb=100)
    await runs.add([new(f"r{number}", line.decode()) for number, line in enumerate(LINES)])
    assert [run.encode() async for run in runs.all()] == LINES


async def test_a_line_that_goes_while_it_is_read_ends_the_answer(database: Database) -> None:
    output, batch_id = await _output(database)
    assert len(await anext(output)) == 2 * K + 2
    await anext(output)
    async with database.write() as connection:
        await connection.exec_driver_sql("DELETE FROM batch_lines")
    with pytest.raises(Refusal, match=batch_id):
        await anext(output)
