"""Writes the pinned answers anew: `python -m tests.net.answers.record`, or with the names of worlds for these alone."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.net.answers import pinned
from tests.net.answers.table import CASES
from tests.net.answers.worlds import WORLDS


def record(name: str) -> None:
    """Write the answers of a world."""
    answers: dict[str, dict[str, object]] = {}
    with TemporaryDirectory() as home, WORLDS[name](Path(home)) as world:
        for case in CASES[name]:
            answers.setdefault(case.group, {})[case.name] = world.answer(case)
    for group, made in answers.items():
        pinned.write(group, made)


def main() -> None:
    names = sys.argv[1:] or list(WORLDS)
    for name in names:
        record(name)
    kept = {case.group for cases in CASES.values() for case in cases}
    for group in pinned.groups() - kept:
        pinned.remove(group)


if __name__ == "__main__":
    main()
