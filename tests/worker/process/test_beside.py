"""Commands whose work would hold up the steps of the batch are done beside them, or in slices between them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from steerserve import messages as m
from steerserve.worker.hooks import explore
from steerserve.worker.process.beside import Beside
from steerserve.worker.process.commands import Commands
from steerserve.worker.rows import lens_files
from steerserve.worker.sae import canonical
from steerserve.worker.sae.canonical import Sae
from tests import asking
from tests.refusals import refusal_of
from tests.worker.conftest import Folder

SECONDS = 30


class Held:
    """Commands of an engine with a model, and the commands that are answered."""

    def __init__(self, folder: Path) -> None:
        self.woken = threading.Event()
        self.commands = Commands(lambda _: None, self.woken.set)
        self.commands.obey(m.Load(1, str(folder), "FP16", False, 1, 64, 16))

    def answer(self) -> m.Event | None:
        """The answer that comes from a thread."""
        while (found := next(self.commands.beside.finished(), None)) is None:
            assert self.woken.wait(SECONDS)
            self.woken.clear()
        return found[1]()


def lens(number: int, ids: list[int], path: Path) -> m.Request:
    goal = m.Lens(layers=None, top=3, max_distributions=100, max_entries=1000, path=str(path))
    return asking.read(number, [m.Tokens(ids)], goal)


def test_fits_and_files_of_lenses_are_read_in_threads_of_their_own(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, main, read = Held(folder("llama")), threading.current_thread(), lens_files.open_lens
    readers: list[threading.Thread] = []
    is_fitted = threading.Event()

    def noted(path: str) -> lens_files.LensFile:
        readers.append(threading.current_thread())
        is_fitted.wait(SECONDS)
        return read(path)

    monkeypatch.setattr(lens_files, "open_lens", noted)
    path = tmp_path / "lens.pt"
    torch.save({"J": torch.eye(32).expand(1, 32, 32).clone()}, path)
    for number, place in enumerate((path, tmp_path / "none.pt")):
        assert held.commands.obey(lens(2 + number, [1, 2], place)) is None
    # no fit waits for a file
    states = np.arange(32, dtype="<f4").reshape(8, 4).tobytes()
    fit = m.Fit(
        id=4,
        layer=0,
        states=states,
        is_positive=[True, False] * 4,
        is_held_out=[False] * 8,
        is_paired=False,
        method="mean_difference",
        seed=1,
    )
    assert held.commands.obey(fit) is None
    fitted = held.answer()
    is_fitted.set()
    assert isinstance(fitted, m.Fitted)
    assert isinstance(held.answer(), m.Started)
    assert refusal_of(held.answer).code == "INVALID_LENS"
    assert main not in readers


def test_what_was_cancelled_is_not_answered(folder: Folder) -> None:
    held = Held(folder("llama"))
    held.commands.obey(lens(2, [1], Path("/nowhere.pt")))
    held.commands.obey(m.Cancel(2))
    assert held.woken.wait(SECONDS)
    assert not list(held.commands.beside.finished())


def test_wide_decoders_are_compared_in_slices_that_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(canonical, "SLICE_NUMBERS", 100)
    wide = Sae(torch.eye(10, 40), torch.zeros(40), torch.randn(40, 10), torch.zeros(10), "relu")
    beside = Beside(lambda: None)
    for number in (1, 2):
        command = m.Explore(id=number, key="sae@0", features=[number], nearest=3)
        beside.cut(command, explore.explore(command, wide))
    order, answers = [], {}
    while beside.has_slices:
        for command, work in beside.slices(0.0):
            order.append(command.id)
            answers[command.id] = work()
    assert order == [1, 2] * 5
    assert all(isinstance(one, m.Explored) for one in answers.values())
