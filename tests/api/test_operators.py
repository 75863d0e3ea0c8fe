"""Whatever an operator does in whatever order, nothing is left behind: no value, no layer claim, no sensed cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.api.operators import Operators, Stage
from tests.service import load_demo, running

QUICK = {"max_examples": 3, "stateful_step_count": 12, "derandomize": True}
LONG = {"max_examples": 25, "stateful_step_count": 30, "derandomize": False}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("operators")) as live:
        load_demo(live)
        yield Stage.of(live)


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(QUICK, id="short"),
        pytest.param(LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_every_order_of_changes_leaves_what_the_rules_say(stage: Stage, length: Any) -> None:
    machine = type("OperatorsHere", (Operators,), {"stage": stage})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(**length, deadline=None, suppress_health_check=checks, print_blob=True),
    )
