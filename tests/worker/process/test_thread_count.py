"""The number of threads while an engine steps, with readings and a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from steerserve.rules.inference.threads import Threads, choices
from steerserve.worker.model import bits
from steerserve.worker.process.thread_count import ThreadCount
from tests.worker import models
from tests.worker.running import open_checkpoint


class Machine:
    """A thread count on a machine whose processors the test gives away."""

    def __init__(self, *, says_waited: bool = True) -> None:
        self.at = self.waited = self.idle = 0.0
        self.used: list[int] = []
        self.told: list[tuple[int, int]] = []
        self.count = ThreadCount(
            lambda threads: self.told.append((threads.now, threads.choices[-1])),
            use=self.used.append,
            waited=lambda: self.waited if says_waited else None,
            idle=lambda: self.idle,
            clock=lambda: self.at,
        )

    def step(self, seconds: float, *, waited: float = 0.0, idle: float = 0.0) -> None:
        self.at += seconds
        self.waited += waited
        self.idle += idle
        self.count.stepped()


def test_threads_are_lowered_beside_a_neighbour_and_raised_after_it() -> None:
    machine = Machine()
    machine.count.set_threads(Threads(2, choices(2)))
    with capture_logs() as logs:
        machine.step(0.1)
        machine.step(1.0, waited=0.5)
        machine.step(1.0)
        machine.step(1.0, idle=1.0)
    assert machine.used == [2, 1, 2]
    assert machine.told == [(2, 2), (1, 2), (2, 2)]
    assert [(line["event"], line["threads"]) for line in logs] == [
        ("threads_lowered", 1),
        ("threads_raised", 2),
    ]


def test_many_short_steps_are_looked_at_together() -> None:
    machine = Machine()
    machine.count.set_threads(Threads(2, choices(2)))
    for _ in range(12):
        machine.step(0.1, waited=0.05)
    assert machine.used == [2, 1]


def test_time_without_work_does_not_count() -> None:
    machine = Machine()
    machine.count.set_threads(Threads(1, (1, 2)))
    machine.step(0.1)
    machine.count.rested()
    machine.step(60.0, idle=120.0)
    machine.step(1.0)
    assert machine.used == [1]


@pytest.mark.parametrize("says_waited", [True, False])
def test_threads_stay_where_bits_differ_or_nothing_is_known(says_waited: bool) -> None:
    machine = Machine(says_waited=says_waited)
    machine.count.set_threads(Threads(2, (2,) if says_waited else (1, 2)))
    for _ in range(3):
        machine.step(1.0, waited=2.0)
    assert machine.used == [2]


def test_a_model_is_checked_for_equal_bits(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    model = open_checkpoint(models.save("llama", tmp_path / "llama"))
    threads: list[int] = []

    def noisy(*args: object, **more: object) -> object:
        threads.append(torch.get_num_threads())
        out = model.model(*args, **more)
        out.logits += 1e-6 * torch.get_num_threads()
        return out

    try:
        assert bits.is_equal_with(model.model, model.vocabulary, (2,))
        assert not bits.is_equal_with(noisy, model.vocabulary, (1, 2))
        assert threads == [1, 1, 2, 2]
        assert torch.get_num_threads() == 2
        assert not bits.is_equal_with(lambda **_: None, model.vocabulary, (1, 2))
    finally:
        torch.set_num_threads(before)
