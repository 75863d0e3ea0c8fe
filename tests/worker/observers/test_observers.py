"""An observer that nobody here has heard of: what it is asked, when, and what it may refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Event, Outcome, Piece, Recorded, Request, Suppressed
from steerserve.worker.batch.batch import Batch
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import Catch
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.observers.observers import Observer, Observers, Span
from steerserve.worker.rows.rows import BatchRow
from tests.worker.running import Bench, generated, hooked, random_sae, site_of, words

KEYS = ("a@0", "b@1")
COLUMNS = [3, 7]
TOLD = "told"


class Watcher(Observer):
    """Reads a few columns of two SAEs at each row's latest token, and tells of them when the row ends."""

    def __init__(self) -> None:
        self.saes: HookedSaes | None = None
        self.log: list[str] = []
        self.seen: dict[str, list[Tensor]] = {key: [] for key in KEYS}
        self.caught: dict[str, Tensor] = {}
        self.gone: list[int] = []
        self.refuses: set[int] = set()
        self.breaks = False

    def begin(self, request: Request, rows: Sequence[BatchRow], saes: HookedSaes) -> None:
        if request.id in self.refuses:
            raise Refusal("INVALID_PARAMETER", "not this one")
        self.saes = saes
        self.log.append(f"begin {request.id}")

    def expect(
        self, rows: Sequence[BatchRow], spans: Sequence[Span]
    ) -> Iterable[tuple[int, Catch]]:
        if self.breaks:
            raise RuntimeError("an observer with a mistake")
        assert self.saes is not None
        lasts = [count - 1 for _, count in spans]

        def catch(key: str) -> Catch:
            def copy(value: Tensor, delta: Tensor | None) -> None:
                self.caught[key] = value[range(len(rows)), lasts].clone()

            return copy

        return [(self.saes.find(key).number, catch(key)) for key in KEYS]

    def settle(self) -> None:
        assert self.saes is not None
        for key, value in self.caught.items():
            self.seen[key].append(self.saes.sae(key).narrowed(COLUMNS).encode(value))
        self.caught = {}

    def discard(self) -> None:
        self.log.append("discard")
        self.caught = {}

    def end(self, row: BatchRow) -> Sequence[Outcome]:
        self.log.append(f"end {row.request}")
        if row.request == 9:
            raise Refusal("INTERNAL_ERROR", "no end for this row")
        return [Piece(row.request, row.choice, TOLD, 0)]

    def forget(self, request: int) -> None:
        self.log.append(f"forget {request}")

    def detached(self, number: int) -> None:
        self.gone.append(number)

    def events(self) -> Sequence[Event]:
        return [Recorded(1, "x", KEYS[0], 0, 0, 0, [], [], 0)]


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def bench(llama: Checkpoint, watcher: Watcher) -> Bench:
    bench = Bench(llama)
    bench.observers = Observers([watcher])
    bench.steering = HookedSaes(llama.dtype, on_detach=bench.observers.detached)
    bench.batch = Batch(llama, bench.steering, bench.observers, bench.kv_tokens)
    return bench


def test_it_reads_columns_of_several_saes_per_row_and_the_model_stays_as_it_is(
    bench: Bench, watcher: Watcher
) -> None:
    saes = [random_sae(32, seed=0), random_sae(32, seed=1)]
    values: list[list[Tensor]] = [[], []]
    size = len(bench.model.encode(words(20), special=True))

    def last(hidden: Tensor) -> Tensor:
        """The value at the last token; passes are padded behind it."""
        return hidden[:1, min(size, hidden.shape[1]) - 1].clone()

    with (
        bench.attached(KEYS[0], saes[0], 0),
        bench.attached(KEYS[1], saes[1], 1),
        hooked(site_of(bench.model, 0), lambda h: values[0].append(last(h))),
        hooked(site_of(bench.model, 1), lambda h: values[1].append(last(h))),
    ):
        answer = bench.ask(1, words(20), plan=Suppressed(), max_tokens=4)
        outcomes = bench.step(4)
    assert answer.tokens == generated(bench.model, words(20), 4)
    for key, sae, site in zip(KEYS, saes, values, strict=True):
        expected = [sae.encode(value)[:, COLUMNS] for value in site]
        torch.testing.assert_close(torch.cat(watcher.seen[key]), torch.cat(expected))
    assert watcher.log == ["begin 1", "end 1"]
    assert [type(outcome) for outcome in outcomes[-2:]] == [Piece, Piece]
    assert [one.text == TOLD for one in answer.pieces[-2:]] == [True, False]
    assert [one.finish for one in answer.pieces[-2:]] == [None, "length"]
    assert len(watcher.gone) == 2
    assert bench.observers.events()


def test_what_it_refuses_ends_the_request_before_it_joins(bench: Bench, watcher: Watcher) -> None:
    watcher.refuses.add(5)
    with pytest.raises(Refusal):
        bench.ask(5, words(20))
    assert watcher.log == ["forget 5"]
    assert bench.batch.is_idle


def test_a_row_that_it_refuses_at_the_end_ends_with_the_refusal(
    bench: Bench, watcher: Watcher
) -> None:
    with bench.attached(KEYS[0], random_sae(32), 0), bench.attached(KEYS[1], random_sae(32), 1):
        bench.ask(9, words(20), max_tokens=2)
        bench.run()
    assert bench.refused[9].code == "INTERNAL_ERROR"
    assert watcher.log == ["begin 9", "end 9", "forget 9"]


def test_its_own_mistake_ends_the_rows_of_the_pass_and_not_the_engine(
    bench: Bench, watcher: Watcher
) -> None:
    bench.ask(1, words(20), max_tokens=2)
    watcher.breaks = True
    bench.run()
    assert bench.refused[1].code == "INTERNAL_ERROR"
    assert watcher.log == ["begin 1", "discard", "forget 1"]


def test_a_cancelled_request_is_forgotten(bench: Bench, watcher: Watcher) -> None:
    with bench.attached(KEYS[0], random_sae(32), 0), bench.attached(KEYS[1], random_sae(32), 1):
        bench.ask(1, words(20), max_tokens=8)
        bench.step(2)
        bench.batch.cancel(1)
    assert watcher.log == ["begin 1", "forget 1"]
