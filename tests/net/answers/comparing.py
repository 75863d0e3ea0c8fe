"""How a test goes through the cases of worlds."""

from __future__ import annotations

import pytest

from tests.net.answers.case import Case
from tests.net.answers.pinned import difference, pinned
from tests.net.answers.table import CASES
from tests.net.answers.worlds import World


def each(*worlds: str) -> pytest.MarkDecorator:
    """A test for each case of these worlds."""
    cases = [pytest.param(name, case, id=case.id) for name in worlds for case in CASES[name]]
    return pytest.mark.parametrize(("world", "case"), cases, indirect=["world"], scope="module")


def check(world: World, case: Case) -> None:
    """Fail with the first place where the answer to a case is not the pinned one."""
    found = difference(pinned(case.group)[case.name], world.answer(case))
    if found is not None:
        pytest.fail(f"{case.id}, {found}", pytrace=False)
