"""Work over several rows that fails because of one of them: it is done again without that row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from steerserve.worker import memory
from steerserve.worker.model.transformer import described_error
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


def each_part(
    rows: list[BatchRow],
    work: Callable[[list[BatchRow]], Result],
    fail: Callable[[list[BatchRow], Exception], object],
) -> list[Result]:
    """Do work over rows; after an error, over each half of them, until the rows that fail are those of one request,
    which `fail` gets with the error. Work that failed must have changed nothing that is counted twice when it is done
    again."""
    try:
        return [work(rows)]
    except Exception as error:
        if len({row.request for row in rows}) == 1:
            fail(rows, error)
            return []
        log.warning("rows_divided", rows=len(rows), why=described_error(error))
        memory.recover(error)
    half = len(rows) // 2
    return [*each_part(rows[:half], work, fail), *each_part(rows[half:], work, fail)]
