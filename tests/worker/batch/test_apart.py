"""Whatever fails because of one row ends the request of this row, and the tokens of the others have the same bits."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec import structs
from structlog.testing import capture_logs

from steerserve.messages import Echo, Overlay, Places
from steerserve.parts.activations.form import Tap
from steerserve.parts.activations.row import ActivationsRow
from steerserve.parts.encoded import EncodedPart
from steerserve.parts.row_part import RowPart
from steerserve.rules.steering.edits import Condition, Edit, Target
from steerserve.rules.steering.vector import Direction
from steerserve.worker.batch.group import Group
from steerserve.worker.batch.reuse import Reuse
from steerserve.worker.hooks.edits import SiteEdits
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.rows.goals import Writing
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.rows.sampling import Sampler
from steerserve.worker.rows.steering import RowSteering
from steerserve.worker.rows.text import TextStream
from tests.worker.running import Bench, random_sae, words

Involves = Callable[[BatchRow, tuple[Any, ...]], bool]
BAD = 3
SAE = random_sae(32)
DIRECTION = Direction(1, "resid_post", struct.pack("<32f", *32 * [1.0]))


def _in(place: int, of: Callable[[BatchRow], Any] = lambda row: row) -> Involves:
    """Whether an argument is the row, or a part of it."""
    return lambda row, args: args[place] is of(row)


def _among(place: int, of: Callable[[BatchRow], Any] = lambda row: row) -> Involves:
    """Whether the row, or a part of it, is in an argument that is a list."""
    return lambda row, args: of(row) is not None and any(one is of(row) for one in args[place])


def _goal(row: BatchRow) -> Writing:
    assert isinstance(row.goal, Writing)
    return row.goal


def _slot(row: BatchRow) -> Any:
    return row.slot


def _steering(row: BatchRow) -> RowSteering:
    return row.steering


PLACES: dict[str, tuple[Any, str, Involves]] = {
    "joining": (Reuse, "join", _in(1)),
    "waiting": (Reuse, "must_wait", _in(1)),
    "beginning": (Group, "_begin", _in(1)),
    "prefill": (Checkpoint, "prefill", _among(2, _slot)),
    "kept": (Reuse, "read", _in(1)),
    "room": (Group, "_make_room", _in(1)),
    "decode": (Checkpoint, "decode_step", _among(2, _slot)),
    "positions": (RowSteering, "active", _in(0, _steering)),
    "hook": (SiteEdits, "change", lambda row, args: _is_at(row, args[0])),
    "condition read": (RowSteering, "record", _in(0, _steering)),
    "condition": (RowSteering, "held", _in(0, _steering)),
    "counted": (RowSteering, "count", _in(0, _steering)),
    "reads": (RowPart, "reads_in_pass", lambda row, args: args[0] in row.parts),
    "part span": (ActivationsRow, "span", lambda row, args: args[0] in row.parts),
    "part values": (EncodedPart, "read_values", lambda row, args: args[0] in row.parts),
    "part drawn": (RowPart, "draw", lambda row, args: args[0] in row.parts),
    "part chunk": (ActivationsRow, "chunk", lambda row, args: args[0] in row.parts),
    "mask": (Sampler, "begin_draw", _in(0, lambda row: _goal(row).sampler)),
    "sampler": (Sampler, "uniform", _in(0, lambda row: _goal(row).sampler)),
    "text": (TextStream, "push", _in(0, lambda row: _goal(row).text)),
    "end": (Reuse, "end", _in(1)),
}


def _is_at(row: BatchRow, edits: SiteEdits) -> bool:
    return any(part.steering is row.steering for part in edits.parts)


def ask(bench: Bench, *, has_bad: bool) -> None:
    """Rows that draw their tokens, one of which also edits and reads conditions, beside rows of one request that does
    the same."""
    for request in range(6):
        if request == BAD and not has_bad:
            continue
        plan = None
        if request in (BAD, 4):
            direction = DIRECTION
            when = Condition(direction, above=-1e9, hold=2)
            plan = Overlay(None, {}, (Edit(direction, Target(offset=0.5), when=when),))
        tap = Tap("low", None, 2, "all", False, 10_000) if request in (BAD, 5) else None
        bench.ask(
            request,
            words(10 + request, 3 * request),
            plan=plan,
            tap=tap,
            counted=() if request == BAD else None,
            temperature=1.0,
            top_p=0.9,
            seed=request,
            max_tokens=6,
        )
    bench.lens(10, words(14))
    bench.read_states(11, [words(9)], [0, 1], Places("mean"))
    bench.read_activations(12, [words(12)], ["low"])
    bench.score(13, words(11), echo=Echo(16, 10_000))
    bench.embed(14, words(13))


@pytest.fixture(scope="module")
def without(loaded: Callable[[str], Checkpoint]) -> Bench:
    """What the other rows are answered where nothing fails."""
    bench = Bench(loaded("llama"), prefix_tokens=512)
    with bench.attached("low", SAE):
        ask(bench, has_bad=False)
        bench.run()
    return bench


@pytest.mark.parametrize("error", [IndexError("x"), MemoryError()], ids=["error", "memory"])
@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_fails_anywhere_ends_alone(
    llama: Checkpoint,
    without: Bench,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: Exception,
) -> None:
    bench = Bench(llama, prefix_tokens=512)
    owner, name, involves = PLACES[place]
    work = getattr(owner, name)
    with bench.attached("low", SAE), monkeypatch.context() as patch, capture_logs():
        ask(bench, has_bad=True)
        bad = bench.answers[BAD, 0].row

        def faulty(*args: Any, **fields: Any) -> Any:
            if involves(bad, args):
                raise error
            return work(*args, **fields)

        patch.setattr(owner, name, faulty)
        bench.run()
    code = "INTERNAL_ERROR" if isinstance(error, IndexError) else "INSUFFICIENT_MEMORY"
    assert {request: refused.code for request, refused in bench.refused.items()} == {BAD: code}
    for (request, _), answer in without.answers.items():
        found = bench.answers[request, 0]
        assert (found.tokens, found.finish) == (answer.tokens, answer.finish)
        assert found.finish == "length"
    assert bench.readings[5] == without.readings[5]
    for kind in ("lenses", "states", "sparse", "scores"):
        assert told(bench, kind) == told(without, kind)
    assert torch.equal(bench.vectors[14, 0], without.vectors[14, 0])


def test_the_first_row_of_a_prefill_pass_may_fail(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(llama)
    answers = [bench.ask(request, words(20, request), max_tokens=4) for request in range(3)]
    prefill = Checkpoint.prefill

    def faulty(model: Checkpoint, cache: Any, slots: Any, *args: Any, **fields: Any) -> Any:
        if any(slot is answers[0].row.slot for slot in slots):
            raise IndexError("x")
        return prefill(model, cache, slots, *args, **fields)

    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(Checkpoint, "prefill", faulty)
        bench.run()
    assert set(bench.refused) == {0}
    assert [len(answer.tokens) for answer in answers[1:]] == [4, 4]


def told(bench: Bench, kind: str) -> list[Any]:
    """What was read, without the time that it took."""
    found = getattr(bench, kind).values()
    return [
        one.__class__(**{**structs.asdict(one), "seconds": 0.0}) if hasattr(one, "seconds") else one
        for one in found
    ]


class Static(Bench):
    decoding = "taped"


def test_a_row_that_fails_takes_the_recorded_passes_from_nobody(
    tapeable: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Static(tapeable("llama"))
    plan = Overlay(None, {}, (Edit(DIRECTION, Target(offset=0.5)),))
    for request in range(4):
        bench.ask(request, words(9 + request), plan=plan if request == BAD else None)
    bad, work = bench.answers[BAD, 0].row, SiteEdits.change

    def faulty(edits: SiteEdits, *args: Any) -> Any:
        if _is_at(bad, edits) and len(bad.out) == 3:
            raise ValueError("x")
        return work(edits, *args)

    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(SiteEdits, "change", faulty)
        bench.run()
    assert set(bench.refused) == {BAD}
    assert not bench.changes
    assert bench.graphs is not None
    assert bench.graphs.replays
