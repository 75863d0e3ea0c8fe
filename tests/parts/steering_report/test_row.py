"""Where the edits of rows acted is told at their end, and of no row that does not ask for it."""

from __future__ import annotations

from collections.abc import Callable

from steerserve.messages import Overlay
from steerserve.rules.steering.edits import Edit, Feature, Target
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.worker.running import Bench, random_sae, words

KEY = "sae@0"
PLAN = Overlay(None, {}, (Edit(Feature(KEY, 7), Target(offset=3.0), number=4),))


def test_the_last_piece_alone_tells_the_acts(loaded: Callable[[str], Checkpoint]) -> None:
    bench = Bench(loaded("llama"))
    with bench.attached(KEY, random_sae(32)):
        told = bench.ask(1, words(20), plan=PLAN, counted=(), max_tokens=5)
        untold = bench.ask(2, words(20), plan=PLAN, max_tokens=5)
        bench.run()
    *before, last = told.pieces
    assert not any(piece.parts for piece in (*before, *untold.pieces))
    (acts,) = asking.acts(last)
    assert acts.number == 4
    assert acts.evaluated == acts.acted == len(told.row.prompt) + len(told.tokens) - 1
