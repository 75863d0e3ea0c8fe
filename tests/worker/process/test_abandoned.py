"""An engine whose service is gone ends quietly, whatever it was about to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from steerserve import messages as m
from steerserve.worker.process import loop
from steerserve.worker.process.wire import Wire


class Gone(Wire):
    """A wire that brings one load, and that nobody reads once `said` events were sent."""

    def __init__(self, path: Path, said: int) -> None:
        self.command = m.Load(
            id=1,
            path=str(path),
            quantization="FP16",
            trust_remote_code=False,
            threads=1,
            kv_cache_mb=8,
            min_context=16,
        )
        self.left = said
        self.asked = 0
        self.is_closed = False

    def receive(self, *, wait: bool, seconds: float | None = None) -> Iterator[m.Command]:
        self.asked += 1
        yield self.command

    def send(self, event: m.Event) -> None:
        if not self.left:
            raise BrokenPipeError
        self.left -= 1


@pytest.mark.parametrize(
    ("model", "said"), [("llama", 0), ("llama", 2), ("llama", 3), ("llama", 4), ("bert", 0)]
)
def test_a_load_that_nobody_waits_for_ends_the_engine_without_a_word(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, model: str, said: int
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(loop, "log", log)
    wire = Gone(folder(model), said)
    loop.Worker(wire).run()
    assert log.calls == []
    assert (wire.asked, wire.left) == (1, 0)
