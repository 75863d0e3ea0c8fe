"""An error in what is asked of one row ends the request of that row, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import MappingProxyType

import pytest
import torch
from msgspec import structs
from structlog.testing import capture_logs

from steerserve import messages as m
from steerserve.parts.divergence.form import Divergence
from steerserve.parts.logprobs.form import Logprobs
from steerserve.rules.clients import in_background
from tests.net.rows.conftest import Start
from tests.net.rows.engine import Answer, Engine, answers, code_of
from tests.net.rows.faults import (
    Method,
    called,
    called_for_rows,
    failing,
    failing_once,
    methods,
    title,
)
from tests.net.rows.options import (
    OPTIONS,
    direction,
    generate,
    others,
    prompt,
    raw,
    raw_reads,
    tap,
)

pytestmark = pytest.mark.slow

OTHERS = 20
SHORT = 2
ERRORS: Mapping[str, Callable[[], Exception]] = MappingProxyType(
    {
        "INTERNAL_ERROR": lambda: KeyError("x"),
        "INSUFFICIENT_MEMORY": MemoryError,
        "INSUFFICIENT_MEMORY of a card": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    }
)
"""The code of an error -> the error."""


Make = Callable[[int, int], m.Command]
PLACES = range(100, 103)
"""The prompts of the requests that fail."""


def written(option: str, **more: object) -> Make:
    """Makes a request with an option, and what may be asked beside it."""
    fields = {**OPTIONS[option], "max_tokens": SHORT, **more}
    return lambda number, place: generate(number, place, **fields)


def other(kind: str) -> Make:
    """Makes a request that writes no text."""
    return lambda number, place: others(number, place)[kind]


def reading(kind: str) -> Make:
    """Makes a request that reads or writes values of sites."""
    return lambda number, place: raw_reads(number, place, max_tokens=SHORT)[kind]


WATCHED = (direction(5),)
KINDS: dict[str, Make] = {
    "rich": written(
        "when all", readings=WATCHED, label="r", is_stream=True, **tap(is_streamed=True)
    ),
    "held": written("when to the end"),
    "decided": written("when prompt max"),
    "text": written("at after text"),
    "drawn": written("drawn penalty", logprobs=Logprobs(2, True, True, 10_000), label="r"),
    "masked": written("mask"),
    "diverging": written("steered divergence", divergence=Divergence([[[5]]], [("resid_post", 0)])),
    "recorded": written("greedy", label="r"),
    "tapped": written("tap named"),
    **{kind: other(kind) for kind in others(0, 0)},
    **{kind: reading(kind) for kind in raw_reads(0, 0)},
}
"""Requests of all kinds; the first one in which a method is called is the one that fails there."""


SHORT_PROMPT = prompt(3, 24)
SHORT_KINDS: dict[str, Make] = {
    **{
        kind: written(option, prompts=[SHORT_PROMPT], **more)
        for kind, option, more in (
            ("rich", "when all", {"label": "r", **tap(is_streamed=True)}),
            ("drawn", "drawn penalty", {"label": "r"}),
            ("masked", "mask", {}),
            ("diverging", "steered divergence", {}),
        )
    },
    **{kind: other(kind) for kind in ("lens", "gradient", "states", "pool max", "score tap")},
    "raw": lambda number, place: generate(
        number, place, raw=raw(), prompts=[SHORT_PROMPT], max_tokens=SHORT
    ),
    "patch": reading("patch"),
}
"""Requests that together call what is called for no row alone."""

UNCALLED = {
    *("Grammars.close", "Grammars.fresh"),
    *("TrainedLens.translated", "Map.read"),
    *("Past.get_seq_length", "Past.get_query_offset", "Past.get_mask_sizes"),
    *("RowGoal.work_on", "RawRow.refusal", "RawReader.fail", "Whole.read", "Whole.patched"),
    "WideLayer.opened",
    *("BatchRow.refused", "BatchRow.failed", "Sampler.undo"),
    *("EncodedPart.encode", "EncodedPart.refusal", "_Copy.fail", "ContextRing.add"),
    *("FeatureMonitor.fail", "ArmingReader.fail", "Sensing.stop_rows"),
    *(f"LiveReader.{name}" for name in ("join", "forget", "detached", "events", "work")),
    *(f"FeatureMonitor.{name}" for name in ("watch", "detached", "read", "read_contexts", "reset")),
    *("Sensing.arm", "Sensing.detached", "LiveReaders.detached"),
    *("SensedRow.keep_only", "ContextRing.strongest", "RunningCounts.read"),
    *("RowGoal.first_scored", "RowGoal.read_prompt", "RowGoal.add_sums"),
    *("RowGoal.resume", "RowGoal.outcomes"),
}
"""Methods that no request calls where nothing fails: those of commands, of trained lenses, of widened layers, of what
follows an error, and those that every class replaces by its own."""


def neighbours(engine: Engine) -> dict[int, m.Command]:
    """The requests of other rows, some of which ask for more than text."""
    made: dict[int, m.Command] = {}
    for place in range(OTHERS):
        number = engine.next_id()
        more = {4: tap(), 9: {"label": "n"}, 14: OPTIONS["feature set"], 19: OPTIONS["nucleus"]}
        fields = {"max_tokens": SHORT, **more.get(place, {})}
        made[number] = generate(number, 0, prompts=[prompt(place, 6 + place)], **fields)
    return made


@pytest.fixture(scope="module")
def engine(start: Start) -> Engine:
    return start(prefix_cache_mb=64)


@dataclass(frozen=True)
class Calls:
    """The methods that are called for one row, each with the kinds of requests for which it is, and those that are
    called while requests run."""

    of_rows: dict[Method, list[str]]
    of_all: set[Method]


@pytest.fixture(scope="module")
def calls(engine: Engine) -> Calls:
    """What is called where nothing fails. Each request is asked twice, so that the second finds what the first one has
    left."""
    asked = {kind: partial(make, place=PLACES[0]) for kind, make in KINDS.items()}
    for make in asked.values():
        engine.answer(make)
    of_rows = called_for_rows(engine, asked)
    with called() as of_all:
        everything(engine)
    return Calls(of_rows, of_all)


def everything(engine: Engine) -> list[Answer]:
    """The answers to requests of all kinds, which yield. Some of their passes are stopped, and one is cancelled."""
    looks, background = count(1), in_background("b")
    made = [SHORT_KINDS[kind](engine.next_id(), 0) for kind in SHORT_KINDS]
    gone = generate(engine.next_id(), 3, max_tokens=50, prompts=[SHORT_PROMPT])
    requests = [structs.replace(command, client=background) for command in (*made, gone)]
    engine.wire.live = lambda: next(looks) % 7 == 0
    told = answers(engine.run(requests, [], [m.Cancel(gone.id)]))
    engine.wire.live = lambda: False
    return [told[command.id] for command in made]


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Answer:
    """What the request is answered that follows."""
    return engine.answer(after)


def after(number: int) -> m.Command:
    """A request that follows."""
    return generate(number, 3, prompts=[SHORT_PROMPT], max_tokens=SHORT)


@pytest.fixture(scope="module")
def without(engine: Engine) -> list[Answer]:
    """What the other requests are answered where nothing fails."""
    asked = neighbours(engine)
    told = engine.told(*asked.values())
    return [told[number] for number in asked]


def tried(engine: Engine, method: Method, make: Make) -> tuple[list[Answer], dict[str, Answer]]:
    """The answers of the other requests, and the answers of those requests in which the method has failed, by what
    failed."""
    bad = {engine.next_id(): code for code in ERRORS}
    asked = neighbours(engine)
    errors = {number: ERRORS[code]() for number, code in bad.items()}
    own = [make(number, place) for number, place in zip(bad, PLACES, strict=True)]
    with failing(engine, method, errors) as failed, capture_logs():
        told = engine.told(*asked.values(), *own)
    return [told[number] for number in asked], {bad[number]: told[number] for number in failed}


@pytest.mark.parametrize("method", methods(), ids=title)
def test_an_error_in_a_method_ends_the_request_of_its_row_alone(
    engine: Engine, calls: Calls, without: list[Answer], plain: Answer, method: Method
) -> None:
    if method in calls.of_rows:
        check_row(engine, KINDS[calls.of_rows[method][0]], without, method)
    elif method in calls.of_all:
        check_all(engine, method)
    else:
        assert title(method) in UNCALLED
    assert engine.answer(after) == plain


def check_row(engine: Engine, make: Make, without: list[Answer], method: Method) -> None:
    """Check that requests in which the method fails end with the code of the error, and no others."""
    beside, found = tried(engine, method, make)
    if len(found) < len(ERRORS):
        # it may be called only where a beginning of the prompt is kept
        for place in PLACES:
            engine.answer(partial(make, place=place))
        beside, found = tried(engine, method, make)
    assert beside == without
    assert found
    for error, answer in found.items():
        code = code_of(answer)
        assert code == error.partition(" ")[0] or (code is None and is_spared(method, error))


def check_all(engine: Engine, method: Method) -> None:
    """Check that every request ends, where the method fails once while it is called for no row alone."""
    place = methods().index(method) % len(ERRORS)
    with failing_once(method, list(ERRORS.values())[place]()) as failed, capture_logs():
        codes = {code_of(answer) for answer in everything(engine)}
    assert failed
    assert codes <= {None, "INTERNAL_ERROR", "INSUFFICIENT_MEMORY"}


def is_spared(method: Method, error: str) -> bool:
    """Whether a request may go on after an error. An error of monitoring or sensing may lose what it has seen and
    nothing else, and where memory runs out over a beginning that is to be kept, it is not kept."""
    is_live = ".live." in method[0].__module__ or title(method) == "BatchRow.token_at"
    if title(method) == "ByLayer.read":
        return True  # the model is called whole for each patch then
    return is_live or error != "INTERNAL_ERROR"
