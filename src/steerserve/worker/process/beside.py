"""Work of commands that would hold up the steps of the batch: in threads beside them, and on the main thread in slices
between them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import torch

from steerserve import messages as m

Work = Callable[[], m.Event | None]
Sliced = Generator[None, None, m.Event]
"""The work of a command: what comes between two of its yields takes some milliseconds."""
Result = TypeVar("Result")

NICENESS = 10
"""How far the thread of fits is below the main thread, on Linux."""


class Beside:
    """The commands whose work is not done yet. `wake` ends a wait of the loop, and may be called from any thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._files = ThreadPoolExecutor(1, "files")
        self._fits = ThreadPoolExecutor(1, "fits", _step_back)
        self._awaited: list[tuple[m.Command, Future[object], Work]] = []
        self._sliced: deque[tuple[m.Command, Sliced]] = deque()

    @property
    def has_slices(self) -> bool:
        """Whether work waits for time between two steps."""
        return bool(self._sliced)

    # ------------------------------------------------------------- beginning

    def read(
        self, command: m.Command, work: Callable[[], Result], then: Callable[[Result], m.Event]
    ) -> None:
        """Read files in a thread, and then answer on the main thread."""
        self.follow(command, self._files.submit(_inferring, work), then)

    def fit(self, command: m.Command, work: Callable[[], m.Event]) -> None:
        """Compute the answer in a thread."""
        self.follow(command, self._fits.submit(work), lambda answer: answer)

    def follow(
        self, command: m.Command, made: Future[Result], then: Callable[[Result], m.Event | None]
    ) -> None:
        """Answer a command on the main thread with what is made in a thread."""
        self._awaited.append((command, made, lambda: then(made.result())))  # type: ignore[arg-type]
        made.add_done_callback(lambda _: self._wake())

    def cut(self, command: m.Command, work: Sliced) -> None:
        """Do work in slices on the main thread. Commands take turns."""
        self._sliced.append((command, work))

    def cancel(self, request: int) -> None:
        """Forget the work of a command. What a thread has begun goes on to its end."""
        for command, made, _ in self._awaited:
            if command.id == request:
                made.cancel()
        self._awaited = [entry for entry in self._awaited if entry[0].id != request]
        self._sliced = deque(entry for entry in self._sliced if entry[0].id != request)

    # ------------------------------------------------------------- ending

    def finished(self) -> Iterator[tuple[m.Command, Work]]:
        """The commands whose threads are done, each with the work that answers it."""
        for entry in [entry for entry in self._awaited if entry[1].done()]:
            self._awaited.remove(entry)
            command, _, work = entry
            yield command, work

    def slices(self, seconds: float) -> Iterator[tuple[m.Command, Work]]:
        """One slice of work, and more until the seconds are over."""
        end = time.monotonic() + seconds
        while self._sliced:
            command, work = self._sliced.popleft()
            yield command, partial(self._advance, command, work)
            if time.monotonic() >= end:
                return

    def _advance(self, command: m.Command, work: Sliced) -> m.Event | None:
        """The answer, once the work has ended."""
        try:
            next(work)
        except StopIteration as ended:
            answer: m.Event = ended.value
            return answer
        self._sliced.append((command, work))
        return None


def _inferring(work: Callable[[], Result]) -> Result:
    with torch.inference_mode():
        return work()


def _step_back() -> None:
    """Let the main thread go first. Elsewhere than on Linux, this would hold for the whole process."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
