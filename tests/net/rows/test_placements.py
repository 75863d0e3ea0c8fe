"""A request is answered the same wherever its rows stand: alone, beside others, apart with a seed, behind a kept
beginning, with a prompt in parts, after stopped passes, and in recorded passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any
from zlib import crc32

import pytest
from msgspec import structs

from steerserve import messages as m
from steerserve.rules.clients import in_background
from steerserve.worker.batch import graphs
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model import native
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.process import loading
from tests.net.rows.conftest import Start
from tests.net.rows.engine import Answer, Engine, code_of, text_of
from tests.net.rows.options import LENGTH, OPTIONS, OTHERS, READERS, generate, others
from tests.worker.tape import Tape

pytestmark = pytest.mark.slow

Answers = dict[str, Answer]
Placement = Callable[[Start], Answers]

CLOSE = 1e-4
"""How near numbers are that were computed by other functions."""

EVERY = [*OPTIONS, *OTHERS]
UNTOLD = frozenset({"steering_report", "ambient"})
"""What is not compared where a kept beginning is used: it is not used where acts are counted, and the active features
of its positions are not counted again."""


def asked(name: str, number: int, client: str = "", **more: Any) -> m.Command:
    """The request of this option, with a prompt of its own. `more` are fields that it has where the option does not
    name them; where acts are not to be counted, they are not."""
    place = crc32(name.encode())
    if name not in OPTIONS:
        return structs.replace(others(number, place)[name], client=client)
    fields = {**more, "client": client, **OPTIONS[name]}
    return generate(number, place, **{**fields, "counted": None} if "counted" in more else fields)


def everything(engine: Engine, *before: m.Command, **more: Any) -> Answers:
    """The answers where all requests run in one batch, in which another one joins in each turn."""
    numbers = {engine.next_id(): name for name in EVERY}
    commands = [asked(name, number, **more) for number, name in numbers.items()]
    told = engine.told(*before, *commands, at_once=False)
    return {name: told[number] for number, name in numbers.items()}


def one_by_one(engine: Engine, **more: Any) -> Answers:
    """The answers where each request has the engine to itself."""
    return {
        name: engine.answer(lambda number, name=name: asked(name, number, **more)) for name in EVERY
    }


def same(found: Any, truth: Any) -> bool:
    """Whether two answers are the same; numbers with a fraction may differ in their last digits."""
    if isinstance(truth, float) and isinstance(found, float):
        return found == pytest.approx(truth, rel=CLOSE, abs=CLOSE)
    if isinstance(truth, dict) and isinstance(found, dict):
        return found.keys() == truth.keys() and all(same(found[key], truth[key]) for key in truth)
    if isinstance(truth, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(found) == len(truth) and all(map(same, found, truth))
    return bool(found == truth)


def without(answer: Any, untold: frozenset[str]) -> Any:
    """An answer without these fields."""
    if isinstance(answer, dict):
        return {name: without(of, untold) for name, of in answer.items() if name not in untold}
    return [without(one, untold) for one in answer] if isinstance(answer, list) else answer


@contextmanager
def counted(engine: Engine) -> Iterator[list[int]]:
    """The tokens of each pass over prompts while this is open."""
    model: Any = engine.model
    plain, read = model.prefill, []

    def counting(cache: Any, slots: Any, rows: Any, **where: Any) -> Any:
        read.append(sum(map(len, rows)))
        return plain(cache, slots, rows, **where)

    model.prefill = counting
    try:
        yield read
    finally:
        del model.prefill


# ---------------------------------------------------------------- the placements


def beside(start: Start) -> Answers:
    """In the shared batch, beside all others."""
    engine = start()
    assert engine.loaded.seeded_rows is not None
    assert engine.loaded.seeded_rows.are_shared
    return everything(engine)


def apart(start: Start) -> Answers:
    """In groups of their own, because each request has a seed."""
    engine = start(seeded_rows="apart")
    assert engine.loaded.seeded_rows is not None
    assert not engine.loaded.seeded_rows.are_shared
    return everything(engine, seed=5)


def kept(start: Start) -> Answers:
    """Behind the beginning of their prompts that the same request has left."""
    engine = start(prefix_cache_mb=64)
    everything(engine, counted=None)
    with counted(engine) as read:
        told = everything(engine, counted=None)
    # taps, states, texts that are pooled and texts that are read again without steering are read anew
    assert sum(read) < LENGTH * len(EVERY) / 2
    return told


def parts(start: Start) -> Answers:
    """With prompts that are read in many parts, because short steps are asked for and another row decodes."""
    engine = start(max_step_ms=0.001)
    fields = {"max_tokens": 700, "temperature": 1.0, "n": 6}
    with counted(engine) as read:
        told = everything(engine, generate(engine.next_id(), 1, seed=1, **fields))
    assert len(read) > 4 * len(EVERY)
    return told


def stopped(start: Start) -> Answers:
    """After passes that were stopped, because a live request had come."""
    engine, looks, stops = start(), count(1), []

    def live() -> bool:
        stops.append(next(looks) % 5 == 0)
        return stops[-1]

    engine.wire.live = live
    told = everything(engine, client=in_background("b"))
    engine.wire.live = lambda: False
    assert sum(stops) > 20
    return told


def recorded(start: Start) -> Answers:
    """In decode passes that are recorded and replayed."""
    made: list[DecodeGraphs] = []

    def recording(_: Any, model: Checkpoint, saes: HookedSaes) -> DecodeGraphs:
        made.append(DecodeGraphs(model, saes, Tape()))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernels", lambda: None)
        patch.setattr(graphs, "CALLED_FIRST", 0)
        patch.setattr(loading, "decode_graphs", recording)
        told = everything(start())
    assert made[0].replays > 30
    return told


PLACEMENTS: tuple[Placement, ...] = (
    beside,
    apart,
    kept,
    parts,
    stopped,
    recorded,
)
EXACT = (beside, apart, kept, parts, stopped)
"""The placements where each number has the bits that it has alone."""
SUMS = ("embed", "states", "pool mean")
"""Requests that are answered with sums over positions, whose last bits depend on how a prompt is cut."""


@pytest.fixture(scope="module")
def engine(start: Start) -> Engine:
    return start()


@pytest.fixture(scope="module")
def truth(engine: Engine) -> Answers:
    """What each request is answered alone."""
    return one_by_one(engine)


@pytest.fixture(scope="module")
def told(start: Start) -> Callable[[Placement], Answers]:
    """What all requests are answered in a placement, which is set up once, also where that fails."""

    @cache
    def tried(placement: Placement) -> Answers | Exception:
        try:
            return placement(start)
        except Exception as error:
            return error

    def found(placement: Placement) -> Answers:
        made = tried(placement)
        assert isinstance(made, dict), f"the placement failed: {made!r}"
        return made

    return found


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda placement: placement.__name__)
def test_a_request_is_answered_the_same_wherever_it_stands(
    truth: Answers,
    told: Callable[[Placement], Answers],
    placement: Placement,
    name: str,
) -> None:
    found, wanted = told(placement)[name], truth[name]
    assert code_of(wanted) is None
    if placement is kept:
        found, wanted = without(found, UNTOLD), without(wanted, UNTOLD)
    if placement in EXACT and name not in SUMS:
        assert found == wanted
    assert same(found, wanted)


def test_an_event_in_a_kept_beginning_tells_no_number_of_active_features(
    truth: Answers, told: Callable[[Placement], Answers]
) -> None:
    def active(answers: Answers) -> list[Any]:
        return [span["ambient"] for span in answers["recording"]["SensedSpans 0"][0]["spans"]]

    assert None not in active(truth)
    assert set(active(told(kept))) == {None}


# ---------------------------------------------------------------- what the options do


SHAPERS = [name for name in OPTIONS if name not in (*READERS, "greedy", "when never")]


@pytest.mark.parametrize("name", SHAPERS)
def test_an_option_changes_its_text_or_acts(engine: Engine, truth: Answers, name: str) -> None:
    plain = engine.answer(lambda number: generate(number, crc32(name.encode())))
    last = truth[name]["Piece 0"][-1]
    has_acted = any(act["acted"] for act in last["parts"].get("steering_report", ()))
    is_shorter = name == "stops" and last["finish"] == "stop"
    assert has_acted or is_shorter or text_of(truth[name]) != text_of(plain)
