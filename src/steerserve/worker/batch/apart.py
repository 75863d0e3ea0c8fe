"""Work over several rows that fails because of one of them: it is done again without that row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from steerserve.worker import memory
from steerserve.worker.model.kv import Stopped
from steerserve.worker.model.transformer import described_error
from steerserve.worker.rows.rows import BatchRow

log = structlog.get_logger(__name__)
Result = TypeVar("Result")

Part = tuple[list[BatchRow], Result | Exception]
"""Some of the rows, with the result of the work over them, or with the error that ended it."""


def each_part(
    rows: list[BatchRow], work: Callable[[list[BatchRow]], Result | Exception]
) -> list[Part[Result]]:
    """Do work over rows; after an error, over each half of them, until the rows that fail are those of one request.
    Work that failed must have changed nothing that is counted twice when it is done again."""
    result = work(rows)
    is_final = not isinstance(result, Exception) or isinstance(result, Stopped)
    if is_final or len({row.request for row in rows}) == 1:
        return [(rows, result)]
    assert isinstance(result, Exception)
    log.warning("rows_divided", rows=len(rows), why=described_error(result))
    memory.recover(result)
    del result
    half = len(rows) // 2
    return [*each_part(rows[:half], work), *each_part(rows[half:], work)]
