"""Which files read the time of day. Everything else measures seconds with a clock that nobody can set."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import steerserve

SOURCE = Path(steerserve.__file__).parent
OF_DAY = (
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
)
"""Names of functions that read the time of day."""
LAST_NAMES = {name.rpartition(".")[2] for name in OF_DAY}

READERS = {
    "app/copies.py": "the name of the database that a restored copy replaces",
    "app/wiring.py": "the number of the first line of the log, which grows over restarts",
    "engines/fleet/replica.py": "`since` of a replica, which is only told",
    "engines/remote/certificates.py": "the time in which a certificate is valid",
    "engines/sandbox/templates.py": "the date that a chat template writes into a prompt",
    "database/catalog.py": "`utc_now`, for the times in records and answers",
    "database/db.py": "the name of a copy of the database",
    "openai/render.py": "`created` in answers of /v1",
    "openai/responses.py": "`created_at` in answers of /v1/responses",
}
"""File -> what it needs the time of day for."""


NAMED = re.compile(rf"\.({'|'.join(LAST_NAMES)}|total_seconds)\b")
"""Text without which a file is not parsed."""


@cache
def trees() -> dict[str, ast.AST]:
    return {
        str(path.relative_to(SOURCE)): ast.parse(text)
        for path in SOURCE.rglob("*.py")
        if "demo" not in path.relative_to(SOURCE).parts and NAMED.search(text := path.read_text())
    }


def test_the_time_of_day_is_read_in_few_places() -> None:
    readers = {
        file
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in LAST_NAMES
        and isinstance(node.value, ast.Name | ast.Attribute)
        and ast.unparse(node).endswith(OF_DAY)
    }
    assert readers == set(READERS)


def test_only_leases_and_batches_subtract_times_of_day() -> None:
    """A difference of two times of day is wrong after somebody set the clock. The leases correct their times, and the
    window of a batch outlasts restarts: when it seems to have ended, the time of day is asked."""
    subtractions = {
        file
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "total_seconds"
    }
    assert subtractions == {
        "control/inference/batches.py",
        "control/residency/leases.py",
        "rules/residency/lease_status.py",
    }
